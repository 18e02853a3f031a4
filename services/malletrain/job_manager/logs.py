"""The log of a job: the files of all its workers. They may hold anything, so each step reads a limited part of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.files import open_plain
from malletrain.common.job_folder import SUPERVISOR_LOG
from malletrain.common.user_threads import UserThreads
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.job_manager.log_reader import (
    CHUNK_BYTES,
    MAX_FILES,
    LogReader,
    WrittenLine,
    last_state,
    log_files,
    writer_of,
)
from malletrain.runtime.errors import InvalidInputError

_PAUSE_PER_LOOK = 20.0
"""Who follows a log of many files pauses for so many times as long as a look at them takes."""
_LINES_PER_MESSAGE = 500
_MESSAGE_BYTES = 1 << 20
MAX_TAIL_LINES = 100_000
_MAX_TAIL_LINE_LENGTH = 2000
"""In letters: the last lines become part of a job's reason."""
_MAX_TAIL_BYTES = 16 << 20
_POLL_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 10.0
_POLLS_PER_STATE = 10
"""Of a progress bar a state is sent every two seconds."""
_KEY = re.compile(r"[A-Za-z0-9._~%-]{1,765}\Z")
_LAST_POSITION = 1 << 60
_SUPERVISOR = "supervisor"


@dataclass(frozen=True)
class LogPart:
    """Some lines of a log.

    Attributes:
        lines: Each as "n017 | text".
        unix_ms: By when each was written, in milliseconds since the epoch; 0: not known.
        positions: Where the files with these lines go on, by key; see `check_positions`.
        ended: Whether the job has ended and nothing follows.
    """

    lines: list[str]
    unix_ms: list[int]
    positions: Mapping[str, int]
    ended: bool = False


def tail(folder: JobFolder, lines: int) -> list[str]:
    """The last lines of a job's log, or of its supervisor's log if the workers wrote nothing."""
    last: deque[str] = deque(maxlen=lines)
    with folder.entered():
        for file in reversed(log_files(folder)):
            missing = lines - len(last)
            if missing <= 0:
                break
            last.extendleft(f"{writer_of(file.path)} | {text}" for text in reversed(_last_lines(file.path, missing)))
        if not last:
            last.extend(f"{_SUPERVISOR} | {text}" for text in _last_lines(folder.path / SUPERVISOR_LOG, lines))
    return list(last)


Look = Callable[[Callable[[], list[WrittenLine]]], Awaitable[list[WrittenLine]]]
"""Does something in another thread, which belongs to the user whose folder it looks at."""


async def _in_thread(work: Callable[[], list[WrittenLine]]) -> list[WrittenLine]:
    return await UserThreads().run("of a log", work)


class _Pacing:
    """Reads in other threads, and knows how long that takes.

    Attributes:
        pause_seconds: How long to pause before the next look at the folder.
    """

    def __init__(self, reader: LogReader, look: Look) -> None:
        self.pause_seconds = 0.0
        self._reader = reader
        self._look = look

    async def read(self, to_the_end: bool = False, states: bool = False, fresh: bool = False) -> list[WrittenLine]:
        seconds = 0.0

        def timed() -> list[WrittenLine]:
            nonlocal seconds
            begin = time.thread_time()
            lines = self._reader.read(to_the_end=to_the_end, states=states, fresh=fresh)
            seconds = time.thread_time() - begin
            return lines

        new_lines = await self._look(timed)
        self.pause_seconds = min(_PAUSE_PER_LOOK * seconds, _MAX_PAUSE_SECONDS)
        return new_lines


async def stream(
    folder: JobFolder,
    tail_lines: int,
    follow: bool,
    positions: Mapping[str, int],
    ended: Callable[[], bool],
    closing: Callable[[], bool],
    look: Look | None = None,
    since_ms: int = 0,
) -> AsyncIterator[LogPart]:
    """A job's log, some lines at a time. The folder is looked at in other threads: it may have any number of files.

    Args:
        folder: The job's folder.
        tail_lines: How many of the last lines that there are now, at most `MAX_TAIL_LINES`, and of these the last
            16 Mi characters; 0: all lines.
        follow: Whether to go on with what is written later, until `ended` or `closing` returns True.
        positions: Where to begin, as `LogReader`.
        ended: Whether the job has ended: nothing more will be written.
        closing: Whether to stop at once. The job goes on: what it has written of a line is left for later.
        since_ms: Without lines that are known to have been written before, in milliseconds since the epoch; 0: all.
        look: Does what looks at the folder in another thread; None: in one of its own.

    Raises:
        UserBusyError: the folder takes too long to look at.
    """
    reader = _Pacing(LogReader(folder, positions, since_ms), look or _in_thread)
    over = ended()
    last = not follow or over
    present: deque[WrittenLine] = deque()
    skipped: dict[str, int] = {}
    size = 0
    while lines := await reader.read(to_the_end=last):
        for line in lines:
            if 0 < line.unix_ms < since_ms:
                skipped[line.key] = line.end
                continue
            if not tail_lines:
                skipped.pop(line.key, None)  # its position is sent with it
            present.append(line)
            size += len(line.text)
        while tail_lines and (size > _MAX_TAIL_BYTES or len(present) > tail_lines):
            line = present.popleft()
            size -= len(line.text)
            skipped[line.key] = line.end
        if not tail_lines:
            for part in _parts_of(present):
                yield part
            present.clear()
        await asyncio.sleep(0)
    if skipped or follow:
        yield LogPart([], [], skipped)  # from here on a reader that comes back has nothing to skip
    for part in _parts_of(present):
        yield part
    for poll in itertools.count():
        if last:
            break
        await asyncio.sleep(max(_POLL_SECONDS, reader.pause_seconds))
        if closing():
            return
        last = over = ended()
        states = poll % _POLLS_PER_STATE == 0
        while lines := await reader.read(to_the_end=last, states=states, fresh=True):
            states = False  # a quick one would have another state each time
            for part in _parts_of(lines):
                yield part
            await asyncio.sleep(0)
    if over:
        yield LogPart([], [], {}, ended=True)


def check_positions(positions: Mapping[str, int], field: str) -> dict[str, int]:
    """Positions as a caller sends them back.

    Args:
        positions: By key of a file.
        field: Path of the field, for errors.

    Raises:
        InvalidInputError: there are too many, or one is none that was sent.
    """
    if len(positions) > MAX_FILES:
        raise InvalidInputError(field, f"at most {MAX_FILES} positions", len(positions))
    for key, position in positions.items():
        if not _KEY.match(key):
            raise InvalidInputError(f"{field}.key", "a key that was sent with lines", key)
        if not 0 <= position <= _LAST_POSITION:
            raise InvalidInputError(f"{field}[{key}]", f"0 to {_LAST_POSITION}", position)
    return dict(positions)


def _parts_of(lines: Iterable[WrittenLine]) -> Iterator[LogPart]:
    part: list[WrittenLine] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line.text)
        if len(part) >= _LINES_PER_MESSAGE or size >= _MESSAGE_BYTES:
            yield _part_of(part)
            part, size = [], 0
    if part:
        yield _part_of(part)


def _part_of(lines: list[WrittenLine]) -> LogPart:
    positions = {line.key: line.end for line in lines}
    return LogPart([line.text for line in lines], [line.unix_ms for line in lines], positions)


def _last_lines(path: Path, lines: int) -> list[str]:
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - CHUNK_BYTES))
            content = file.read(CHUNK_BYTES)
    except OSError:
        return []
    parts = content.removesuffix(b"\n").split(b"\n")
    if size > CHUNK_BYTES and len(parts) > 1:
        del parts[0]  # its beginning is missing
    return [last_state(line)[-_MAX_TAIL_LINE_LENGTH:] for line in parts[-lines:]] if content else []
