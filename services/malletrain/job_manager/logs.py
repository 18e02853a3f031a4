"""The log of a job: the files of all its workers. They may hold anything, so each step reads a limited part of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from malletrain.common.files import open_plain
from malletrain.common.job_folder import SUPERVISOR_LOG
from malletrain.job_manager.launching.folder import JobFolder, clean_text
from malletrain.runtime.errors import InvalidInputError

_CHUNK_BYTES = 1 << 18
_CHUNKS_PER_READ = 16
"""4 MiB: some ten milliseconds, in which nothing else is done."""
_LONGEST_LINE_BYTES = 1 << 16
"""What is longer becomes several lines."""
_MOST_FILES = 20_000
_LINES_PER_MESSAGE = 500
_MESSAGE_BYTES = 1 << 20
MOST_TAIL_LINES = 100_000
_MOST_TAIL_BYTES = 16 << 20
_POLL_SECONDS = 0.2
_KEY = re.compile(r"[A-Za-z0-9._~%-]{1,765}\Z")
_LAST_POSITION = 1 << 60
_SUPERVISOR = "supervisor"


Line = tuple[str, str, int]
"""A line as "n017 | text", the key of its file, and the position in the file where the next line begins."""


@dataclass(frozen=True)
class LogPart:
    """Some lines of a log.

    Attributes:
        lines: Each as "n017 | text".
        positions: Where the files with these lines go on, by key; see `check_positions`.
        ended: Whether the job has ended and nothing follows.
    """

    lines: list[str]
    positions: Mapping[str, int]
    ended: bool = False


class LogReader:
    """Reads what was added to the log files of a job since the last call.

    Lines of one file keep their order. If several files have new lines, the lines come file by file, those of the file
    that was written last at the end.
    """

    def __init__(self, folder: JobFolder, positions: Mapping[str, int] | None = None) -> None:
        """Begin at positions in the log files of a job's folder.

        Args:
            folder: The folder.
            positions: By key of a file, as `Line` has them. A file that is not named, or is shorter, is read from its
                start.
        """
        self._folder = folder
        self._offsets = dict(positions or {})

    def read(self, to_the_end: bool = False) -> list[Line]:
        """Complete lines that were added since the last call.

        At most about 4 MiB of them, so that there may be more although nothing is written; none if there are no more.

        Args:
            to_the_end: Whether text after the last line end counts as a line.
        """
        lines: list[Line] = []
        chunks = _CHUNKS_PER_READ
        with self._folder.entered():
            for path in _files(self._folder):
                if chunks <= 0:
                    break
                writer, key = _writer(path), file_key(path.name)
                found, taken = self._read_file(path, key, to_the_end, chunks)
                lines += [(f"{writer} | {_text(part)}", key, end) for part, end in found]
                chunks -= taken
        return lines

    def _read_file(
        self, path: Path, key: str, to_the_end: bool, most_chunks: int
    ) -> tuple[list[tuple[bytes, int]], int]:
        offset = self._offsets.get(key, 0)
        found: list[tuple[bytes, int]] = []
        taken, rest, at_end = 0, b"", False
        try:
            with open_plain(path) as file:
                if offset > os.fstat(file.fileno()).st_size:
                    offset = 0  # the job has put something else in its place
                file.seek(offset)
                while taken < most_chunks and not at_end:
                    chunk = file.read(_CHUNK_BYTES)
                    at_end = len(chunk) < _CHUNK_BYTES
                    taken += bool(chunk)
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        *parts, last = _parts(line)
                        for part in parts:
                            offset += len(part)
                            found.append((part, offset))
                        offset += len(last) + 1
                        found.append((last, offset))
                    while len(rest) >= _LONGEST_LINE_BYTES:
                        offset += _LONGEST_LINE_BYTES
                        found.append((rest[:_LONGEST_LINE_BYTES], offset))
                        rest = rest[_LONGEST_LINE_BYTES:]
        except OSError:
            return [], 0  # the job has removed it, or put something else in its place
        if rest and to_the_end and at_end:
            offset += len(rest)
            found.append((rest, offset))
        self._offsets[key] = offset
        return found, taken


def tail(folder: JobFolder, lines: int) -> list[str]:
    """The last lines of a job's log, or of its supervisor's log if the workers wrote nothing."""
    last: deque[str] = deque(maxlen=lines)
    with folder.entered():
        for path in reversed(_files(folder)):
            missing = lines - len(last)
            if missing <= 0:
                break
            last.extendleft(f"{_writer(path)} | {text}" for text in reversed(_last_lines(path, missing)))
        if not last:
            last.extend(f"{_SUPERVISOR} | {text}" for text in _last_lines(folder.path / SUPERVISOR_LOG, lines))
    return list(last)


async def stream(
    folder: JobFolder,
    tail_lines: int,
    follow: bool,
    positions: Mapping[str, int],
    ended: Callable[[], bool],
    closing: Callable[[], bool],
) -> AsyncIterator[LogPart]:
    """A job's log, some lines at a time.

    Args:
        folder: The job's folder.
        tail_lines: How many of the last lines that there are now, at most `MOST_TAIL_LINES`, and of these the last
            16 Mi characters; 0: all lines.
        follow: Whether to go on with what is written later, until `ended` or `closing` returns True.
        positions: Where to begin, as `LogReader`.
        ended: Whether the job has ended: nothing more will be written.
        closing: Whether to stop at once. The job goes on: what it has written of a line is left for later.
    """
    reader = LogReader(folder, positions)
    over = ended()
    last = not follow or over
    present: deque[Line] = deque()
    skipped: dict[str, int] = {}
    size = 0
    while lines := reader.read(to_the_end=last):
        present.extend(lines)
        size += sum(len(text) for text, _, _ in lines)
        while tail_lines and (size > _MOST_TAIL_BYTES or len(present) > tail_lines):
            text, key, end = present.popleft()
            size -= len(text)
            skipped[key] = end
        if not tail_lines:
            for part in _parts_of(present):
                yield part
            present.clear()
        await asyncio.sleep(0)
    if skipped or follow:
        yield LogPart([], skipped)  # from here on a reader that comes back has nothing to skip
    for part in _parts_of(present):
        yield part
    while not last:
        await asyncio.sleep(_POLL_SECONDS)
        if closing():
            return
        last = over = ended()
        while lines := reader.read(to_the_end=last):
            for part in _parts_of(lines):
                yield part
            await asyncio.sleep(0)
    if over:
        yield LogPart([], {}, ended=True)


def file_key(name: str) -> str:
    """The key of a log file with any name, in ASCII."""
    return quote(os.fsencode(name), safe="")


def check_positions(positions: Mapping[str, int], field: str) -> dict[str, int]:
    """Positions as a caller sends them back.

    Args:
        positions: By key of a file.
        field: Path of the field, for errors.

    Raises:
        InvalidInputError: there are too many, or one is none that was sent.
    """
    if len(positions) > _MOST_FILES:
        raise InvalidInputError(field, f"at most {_MOST_FILES} positions", len(positions))
    for key, position in positions.items():
        if not _KEY.match(key):
            raise InvalidInputError(f"{field}.key", "a key that was sent with lines", key)
        if not 0 <= position <= _LAST_POSITION:
            raise InvalidInputError(f"{field}[{key}]", f"0 to {_LAST_POSITION}", position)
    return dict(positions)


def _parts_of(lines: Iterable[Line]) -> Iterator[LogPart]:
    part: list[str] = []
    positions: dict[str, int] = {}
    size = 0
    for text, key, end in lines:
        part.append(text)
        positions[key] = end
        size += len(text)
        if len(part) >= _LINES_PER_MESSAGE or size >= _MESSAGE_BYTES:
            yield LogPart(part, positions)
            part, positions, size = [], {}, 0
    if part:
        yield LogPart(part, positions)


def _files(folder: JobFolder) -> list[Path]:
    """Log files of workers; the one that was written last comes last."""
    found: list[tuple[int, str, Path]] = []
    try:
        with os.scandir(folder.logs) as entries:
            for entry in itertools.islice(entries, _MOST_FILES):
                if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name, Path(entry.path)))
    except OSError:
        return []  # not started yet, or the job has removed it
    return [path for _, _, path in sorted(found)]


def _writer(path: Path) -> str:
    """Node of a file named `NODE.LOCAL_RANK.log`."""
    return clean_text(path.stem.rpartition(".")[0] or path.stem)


def _parts(line: bytes) -> Iterator[bytes]:
    for start in range(0, max(len(line), 1), _LONGEST_LINE_BYTES):
        yield line[start : start + _LONGEST_LINE_BYTES]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _last_lines(path: Path, lines: int) -> list[str]:
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _CHUNK_BYTES))
            text = file.read(_CHUNK_BYTES).decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]
