"""The log of a job: the files of all its workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from malletrain.common.job_folder import LOGS_FOLDER, SUPERVISOR_LOG

_CHUNK_BYTES = 1 << 18
_LINES_PER_MESSAGE = 500
_POLL_SECONDS = 0.2
_SUPERVISOR = "supervisor"


class LogReader:
    """Reads what was added to the log files of a job since the last call.

    Lines of one file keep their order. If several files have new lines, the lines come file by file, those of the file
    that was written last at the end.
    """

    def __init__(self, folder: Path) -> None:
        """Begin at the start of every log file in a job's folder."""
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self, to_the_end: bool = False) -> list[str]:
        """Complete lines that were added since the last call, each as "n017 | text".

        Args:
            to_the_end: Whether text after the last line end counts as a line.
        """
        lines: list[str] = []
        for path in _files(self._folder):
            lines += [f"{_writer(path)} | {text}" for text in self._read_file(path, to_the_end)]
        return lines

    def _read_file(self, path: Path, to_the_end: bool) -> list[str]:
        offset = self._offsets.get(path, 0)
        texts: list[str] = []
        rest = b""
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                texts += [line.decode(errors="replace").rstrip("\r") for line in whole]
                offset += len(chunk)
        if rest and to_the_end:
            texts.append(rest.decode(errors="replace"))
            rest = b""
        self._offsets[path] = offset - len(rest)
        return texts


def tail(folder: Path, lines: int) -> list[str]:
    """The last lines of a job's log, or of its supervisor's log if the workers wrote nothing."""
    last: deque[str] = deque(maxlen=lines)
    for path in reversed(_files(folder)):
        missing = lines - len(last)
        if missing <= 0:
            break
        last.extendleft(f"{_writer(path)} | {text}" for text in reversed(_last_lines(path, missing)))
    if not last and (folder / SUPERVISOR_LOG).exists():
        last.extend(f"{_SUPERVISOR} | {text}" for text in _last_lines(folder / SUPERVISOR_LOG, lines))
    return list(last)


async def stream(folder: Path, tail_lines: int, follow: bool, ended: Callable[[], bool]) -> AsyncIterator[list[str]]:
    """A job's log, some lines at a time.

    Args:
        folder: The job's folder.
        tail_lines: How many of the last lines that there are now; 0: all lines.
        follow: Whether to go on with what is written later, until `ended` returns True.
        ended: Whether nothing more will be written.
    """
    reader = LogReader(folder)
    last = not follow or ended()
    lines = reader.read(to_the_end=last)
    if tail_lines:
        lines = lines[-tail_lines:]
    while True:
        for start in range(0, len(lines), _LINES_PER_MESSAGE):
            yield lines[start : start + _LINES_PER_MESSAGE]
        if last:
            return
        await asyncio.sleep(_POLL_SECONDS)
        last = ended()
        lines = reader.read(to_the_end=last)


def _files(folder: Path) -> list[Path]:
    """Log files of workers; the one that was written last comes last."""
    return sorted((folder / LOGS_FOLDER).glob("*.log"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def _writer(path: Path) -> str:
    """Node of a file named `NODE.LOCAL_RANK.log`."""
    return path.stem.rpartition(".")[0] or path.stem


def _last_lines(path: Path, lines: int) -> list[str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _CHUNK_BYTES))
        text = file.read().decode(errors="replace")
    return text.splitlines()[-lines:]
