"""The log of a job: the files of all its workers. They may hold anything, so each step reads a limited part of them."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from malletrain.common.files import open_plain
from malletrain.common.job_folder import SUPERVISOR_LOG
from malletrain.job_manager.launching.folder import JobFolder, clean_text

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
_SUPERVISOR = "supervisor"


class LogReader:
    """Reads what was added to the log files of a job since the last call.

    Lines of one file keep their order. If several files have new lines, the lines come file by file, those of the file
    that was written last at the end.
    """

    def __init__(self, folder: JobFolder) -> None:
        """Begin at the start of every log file in a job's folder."""
        self._folder = folder
        self._offsets: dict[str, int] = {}

    def read(self, to_the_end: bool = False) -> list[str]:
        """Complete lines that were added since the last call, each as "n017 | text".

        At most about 4 MiB of them, so that there may be more although nothing is written; none if there are no more.

        Args:
            to_the_end: Whether text after the last line end counts as a line.
        """
        lines: list[str] = []
        chunks = _CHUNKS_PER_READ
        with self._folder.entered():
            for path in _files(self._folder):
                if chunks <= 0:
                    break
                texts, taken = self._read_file(path, to_the_end, chunks)
                lines += [f"{_writer(path)} | {text}" for text in texts]
                chunks -= taken
        return lines

    def _read_file(self, path: Path, to_the_end: bool, most_chunks: int) -> tuple[list[str], int]:
        offset = self._offsets.get(path.name, 0)
        texts: list[str] = []
        taken, rest, at_end = 0, b"", False
        try:
            with open_plain(path) as file:
                file.seek(offset)
                while taken < most_chunks and not at_end:
                    chunk = file.read(_CHUNK_BYTES)
                    at_end = len(chunk) < _CHUNK_BYTES
                    taken += bool(chunk)
                    *whole, rest = (rest + chunk).split(b"\n")
                    offset += sum(map(len, whole)) + len(whole)
                    texts += [_text(part) for line in whole for part in _parts(line)]
                    while len(rest) >= _LONGEST_LINE_BYTES:
                        texts.append(_text(rest[:_LONGEST_LINE_BYTES]))
                        rest = rest[_LONGEST_LINE_BYTES:]
                        offset += _LONGEST_LINE_BYTES
        except OSError:
            return [], 0  # the job has removed it, or put something else in its place
        if rest and to_the_end and at_end:
            texts.append(_text(rest))
            offset += len(rest)
        self._offsets[path.name] = offset
        return texts, taken


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
    folder: JobFolder, tail_lines: int, follow: bool, ended: Callable[[], bool]
) -> AsyncIterator[list[str]]:
    """A job's log, some lines at a time.

    Args:
        folder: The job's folder.
        tail_lines: How many of the last lines that there are now, at most `MOST_TAIL_LINES`, and of these the last
            16 Mi characters; 0: all lines.
        follow: Whether to go on with what is written later, until `ended` returns True.
        ended: Whether nothing more will be written.
    """
    reader = LogReader(folder)
    last = not follow or ended()
    present: deque[str] = deque()
    size = 0
    while lines := reader.read(to_the_end=last):
        present.extend(lines)
        size += sum(map(len, lines))
        while tail_lines and (size > _MOST_TAIL_BYTES or len(present) > tail_lines):
            size -= len(present.popleft())
        if not tail_lines:
            for message in _messages(present):
                yield message
            present.clear()
        await asyncio.sleep(0)
    for message in _messages(present):
        yield message
    while not last:
        await asyncio.sleep(_POLL_SECONDS)
        last = ended()
        while lines := reader.read(to_the_end=last):
            for message in _messages(lines):
                yield message
            await asyncio.sleep(0)


def _messages(lines: list[str] | deque[str]) -> Iterator[list[str]]:
    message: list[str] = []
    size = 0
    for line in lines:
        message.append(line)
        size += len(line)
        if len(message) >= _LINES_PER_MESSAGE or size >= _MESSAGE_BYTES:
            yield message
            message, size = [], 0
    if message:
        yield message


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
