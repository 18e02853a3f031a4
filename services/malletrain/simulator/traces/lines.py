"""Reads text files by lines, each with its place for errors."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        place: `file:number`.
        text: The line without its end.
    """

    place: str
    text: str


def read_lines(paths: Iterable[Path]) -> Iterator[Line]:
    """Lines of text files, one file after the other. Files named *.gz are decompressed.

    Raises:
        InvalidInputError: a file can't be read, or is not UTF-8.
    """
    for path in paths:
        number = 0
        try:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                for number, raw in enumerate(file, 1):
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield Line(f"{path}:{number}", text.rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{path}:{number}", "text in UTF-8") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidInputError(f"{path}:{number + 1}", f"a complete gzip file ({error})") from error
        except OSError as error:
            raise InvalidInputError(str(path), f"a readable file ({error})") from error
