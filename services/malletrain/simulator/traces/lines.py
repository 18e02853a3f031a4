"""Reads text files by lines, each with its place for errors."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple

from malletrain.runtime.errors import InvalidInputError

_LINES_PER_PROGRESS = 1000


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        place: `file:number`.
        text: The line without its end.
    """

    place: str
    text: str


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of files as they lie there; those that can't be read have none."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def read_lines(paths: Iterable[Path], progress: Callable[[float], None] | None = None) -> Iterator[Line]:
    """Lines of text files, one file after the other. Files named *.gz are decompressed.

    Args:
        paths: The files.
        progress: Called now and then with the number of bytes that were read, of the files as they lie there.

    Raises:
        InvalidInputError: a file can't be read, or is not UTF-8.
    """
    before = 0
    for path in paths:
        number = 0
        try:
            with path.open("rb") as raw, _plain(raw, path) as file:
                for number, line in enumerate(file, 1):
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield Line(f"{path}:{number}", text.rstrip("\r\n"))
                    if progress is not None and number % _LINES_PER_PROGRESS == 0:
                        progress(before + raw.tell())
                before += raw.tell()
            if progress is not None:
                progress(before)
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{path}:{number}", "text in UTF-8") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidInputError(f"{path}:{number + 1}", f"a complete gzip file ({error})") from error
        except OSError as error:
            raise InvalidInputError(str(path), f"a readable file ({error})") from error


def _plain(raw: BinaryIO, path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="rb")
    return nullcontext(raw)
