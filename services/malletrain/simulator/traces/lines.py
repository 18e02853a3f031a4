"""Reads text files by lines, each with its place for errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.opening import UNREADABLE, open_log, unreadable

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longer than any line of a scheduler: a node list of a whole machine has some hundred kilobytes."""
_LINES_PER_PROGRESS = 1000
_BYTE_ORDER_MARK = "\ufeff"


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        file: Path of the file.
        number: Number of the line, from 1.
        text: The line without its end.
        unit: What stands between file and number where it is told, if it is not a line that is counted.
    """

    file: str
    number: int
    text: str
    unit: str = ":"

    @property
    def place(self) -> str:
        """`file:number`, for errors."""
        return f"{self.file}{self.unit}{self.number}"


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of files as they lie there; those that can't be read have none."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def read_lines(paths: Iterable[Path], progress: Callable[[float], None] | None = None) -> Iterator[Line]:
    """Lines of text files, plain or compressed, one file after the other.

    Node names and times are ASCII; what is not UTF-8 in a comment or a user's name becomes U+FFFD.

    Args:
        paths: The files.
        progress: Called now and then with the number of bytes that were read, of the files as they lie there.

    Raises:
        InvalidInputError: a file can't be read, or a line is longer than `MAX_LINE_BYTES`.
    """
    before = 0
    for path in paths:
        number, name = 0, str(path)
        try:
            with open_log(path) as log:
                for number, raw in enumerate(iter(lambda: log.file.readline(MAX_LINE_BYTES + 1), b""), 1):
                    if len(raw) > MAX_LINE_BYTES:
                        raise InvalidInputError(f"{path}:{number}", f"a line of at most {MAX_LINE_BYTES} bytes")
                    text = raw.decode("utf-8", "replace")
                    if number == 1:
                        text = text.removeprefix(_BYTE_ORDER_MARK)
                    yield Line(name, number, text.rstrip("\r\n"))
                    if progress is not None and number % _LINES_PER_PROGRESS == 0:
                        progress(before + log.position())
                before += log.position()
            if progress is not None:
                progress(before)
        except UNREADABLE as error:
            raise unreadable(error, path, number) from error
