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
from urllib.parse import quote

from malletrain.common.files import open_plain
from malletrain.common.job_folder import SUPERVISOR_LOG
from malletrain.common.user_threads import UserThreads
from malletrain.job_manager.launching.folder import JobFolder, clean_text
from malletrain.runtime.errors import InvalidInputError

_CHUNK_BYTES = 1 << 18
_CHUNKS_PER_READ = 16
"""4 MiB: some ten milliseconds of a processor."""
_MAX_LINE_BYTES = 1 << 16
"""What is longer becomes several lines."""
_MAX_FILES = 20_000
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
    that was written last at the end. Of a line with carriage returns, as progress bars write them, its last state
    counts.
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
        self._shown: dict[str, int] = {}
        """Hashes of the states of lines without an end that were returned, by key of the file."""

    def read(self, to_the_end: bool = False, states: bool = False) -> list[Line]:
        """Complete lines that were added since the last call.

        At most about 4 MiB of them, so that there may be more although nothing is written; none if there are no more.

        Args:
            to_the_end: Whether text after the last line end counts as a line.
            states: Whether the present state of a line without an end that has carriage returns counts as a line.
        """
        lines: list[Line] = []
        chunks = _CHUNKS_PER_READ
        with self._folder.entered():
            for path in _files(self._folder):
                if chunks <= 0:
                    break
                writer, key = _writer(path), file_key(path.name)
                found, taken = self._read_file(path, key, chunks, to_the_end, states)
                lines += [(f"{writer} | {text}", key, end) for text, end in found]
                chunks -= taken
        return lines

    def _read_file(
        self, path: Path, key: str, max_chunks: int, to_the_end: bool, states: bool
    ) -> tuple[list[tuple[str, int]], int]:
        """Texts with the positions after them, and the number of chunks that were read."""
        offset = self._offsets.get(key, 0)
        found: list[tuple[str, int]] = []
        taken, rest, at_end = 0, b"", False
        try:
            with open_plain(path) as file:
                if offset > os.fstat(file.fileno()).st_size:
                    offset = 0  # the job has put something else in its place
                file.seek(offset)
                while taken < max_chunks and not at_end:
                    chunk = file.read(_CHUNK_BYTES)
                    at_end = len(chunk) < _CHUNK_BYTES
                    taken += bool(chunk)
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        *parts, last = _parts(line)
                        for part in parts:
                            offset += len(part)
                            self._add(found, key, part, offset)
                        offset += len(last) + 1
                        self._add(found, key, last, offset)
                        self._shown.pop(key, None)
                    *parts, rest = _parts(rest)
                    for part in parts:
                        offset += len(part)
                        self._add(found, key, part, offset)
        except OSError:
            return [], 0  # the job has removed it, or put something else in its place
        if rest and at_end and to_the_end:
            offset += len(rest)
            self._add(found, key, rest, offset)
        elif at_end and states and b"\r" in rest and (text := _text(rest)):
            # What comes before its newest state will not be needed any more.
            offset += rest.rstrip(b"\r").rfind(b"\r") + 1
            self._add(found, key, rest, offset)
            self._shown[key] = hash(text)
        self._offsets[key] = offset
        return found, taken

    def _add(self, found: list[tuple[str, int]], key: str, line: bytes, end: int) -> None:
        """Add a line or a part of one, unless it is a state that was returned before the line had its end."""
        text = _text(line)
        if key not in self._shown or (text and hash(text) != self._shown[key]):
            found.append((text, end))


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


Look = Callable[[Callable[[], list[Line]]], Awaitable[list[Line]]]
"""Does something in another thread, which belongs to the user whose folder it looks at."""


async def _in_thread(work: Callable[[], list[Line]]) -> list[Line]:
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

    async def read(self, to_the_end: bool = False, states: bool = False) -> list[Line]:
        seconds = 0.0

        def timed() -> list[Line]:
            nonlocal seconds
            begin = time.thread_time()
            found = self._reader.read(to_the_end=to_the_end, states=states)
            seconds = time.thread_time() - begin
            return found

        found = await self._look(timed)
        self.pause_seconds = min(_PAUSE_PER_LOOK * seconds, _MAX_PAUSE_SECONDS)
        return found


async def stream(
    folder: JobFolder,
    tail_lines: int,
    follow: bool,
    positions: Mapping[str, int],
    ended: Callable[[], bool],
    closing: Callable[[], bool],
    look: Look | None = None,
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
        look: Does what looks at the folder in another thread; None: in one of its own.

    Raises:
        UserBusyError: the folder takes too long to look at.
    """
    reader = _Pacing(LogReader(folder, positions), look or _in_thread)
    over = ended()
    last = not follow or over
    present: deque[Line] = deque()
    skipped: dict[str, int] = {}
    size = 0
    while lines := await reader.read(to_the_end=last):
        present.extend(lines)
        size += sum(len(text) for text, _, _ in lines)
        while tail_lines and (size > _MAX_TAIL_BYTES or len(present) > tail_lines):
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
    for poll in itertools.count():
        if last:
            break
        await asyncio.sleep(max(_POLL_SECONDS, reader.pause_seconds))
        if closing():
            return
        last = over = ended()
        states = poll % _POLLS_PER_STATE == 0
        while lines := await reader.read(to_the_end=last, states=states):
            states = False  # a quick one would have another state each time
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
    if len(positions) > _MAX_FILES:
        raise InvalidInputError(field, f"at most {_MAX_FILES} positions", len(positions))
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
            for entry in itertools.islice(entries, _MAX_FILES):
                if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name, Path(entry.path)))
    except OSError:
        return []  # not started yet, or the job has removed it
    return [path for _, _, path in sorted(found)]


def _writer(path: Path) -> str:
    """Node of a file named `NODE.LOCAL_RANK.log`."""
    return clean_text(path.stem.rpartition(".")[0] or path.stem)


def _parts(line: bytes) -> Iterator[bytes]:
    """A line as it is, or in parts where it is too long: cut between states of a progress bar, else between letters."""
    start = 0
    while len(line) - start > _MAX_LINE_BYTES:
        part = line[start : start + _MAX_LINE_BYTES]
        end = part.rfind(b"\r") + 1 or len(part) - _begun_letter(part)
        yield part[:end]
        start += end
    yield line[start:]


def _begun_letter(part: bytes) -> int:
    """How many bytes at the end are the beginning of a letter in UTF-8."""
    for count in range(1, 4):
        byte = part[-count]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return count if count < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
    return 0


def _text(line: bytes) -> str:
    """What of a line would be seen on a terminal: its last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def _last_lines(path: Path, lines: int) -> list[str]:
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _CHUNK_BYTES))
            content = file.read(_CHUNK_BYTES)
    except OSError:
        return []
    found = content.removesuffix(b"\n").split(b"\n")
    if size > _CHUNK_BYTES and len(found) > 1:
        del found[0]  # its beginning is missing
    return [_text(line)[-_MAX_TAIL_LINE_LENGTH:] for line in found[-lines:]] if content else []
