"""Reads the log files of a job by time. They may hold anything, so each step reads a limited part of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

from malletrain.common.files import open_plain
from malletrain.common.job_folder import LOG_SUFFIX, log_times_path
from malletrain.common.log_times import MAX_ENTRIES, MAX_FILE_BYTES, LogTimes, read_times
from malletrain.job_manager.launching.folder import JobFolder, clean_text

CHUNK_BYTES = 1 << 18
BYTES_PER_READ = 4 << 20
"""Some ten milliseconds of a processor."""
_MIN_LINE_COST = 32
"""Bytes that a line counts as at least: short ones take more memory by their number than by their text."""
_MAX_LINE_BYTES = 1 << 16
"""What is longer becomes several lines."""
MAX_FILES = 20_000
_MAX_TIMES = 1 << 18
"""Of all logs of a job together; where there are many, what is known of each gets coarser."""
_MIN_TIMES = 16
TIMES_BYTES_PER_READ = 8 << 20
"""Of the files of times together that one read looks at anew: as much as 64 nodes write down in a long job."""
_MIN_TIMES_BYTES = _MIN_TIMES * 48
_MAX_ATTEMPTS = 64
"""Of one read; only a job that changes its files all the time comes as far."""
_LATEST_MS = 1 << 53


class WrittenLine(NamedTuple):
    """A line of a log.

    Attributes:
        text: As "n017 | text".
        key: The key of its file.
        end: The position in the file where the next line begins.
        unix_ms: By when it was written, in milliseconds since the epoch; 0: not known.
    """

    text: str
    key: str
    end: int
    unix_ms: int = 0


@dataclass(frozen=True)
class LogFile:
    """A log file, as it was looked at.

    Attributes:
        size: In bytes.
        written_ms: When it was last written, in milliseconds since the epoch.
    """

    path: Path
    size: int
    written_ms: int


@dataclass(frozen=True)
class _Unread:
    """The part of a file that is still to be read."""

    file: LogFile
    key: str
    begin: int
    times: LogTimes

    @property
    def unread_bytes(self) -> int:
        """How many bytes are to be read."""
        return self.file.size - self.begin

    @property
    def first_ms(self) -> int:
        """When the first of it was written."""
        return self.times.ms_at(self.begin + 1) or self.last_ms

    @property
    def last_ms(self) -> int:
        """When the last of it was written."""
        return max(self.file.written_ms, self.times.last_ms)

    def end_at(self, until_ms: int) -> int:
        """The size that the file had at a time, at least."""
        if until_ms >= self.last_ms:
            return self.file.size
        return min(self.file.size, max(self.begin, self.times.size_before(until_ms + 1)))


class LogReader:
    """Reads what was added to the log files of a job since the last call.

    Lines of one file keep their order; those of several come by time, as far as it is known when they were written
    (`log_times.py`). Of a line with carriage returns, as progress bars write them, its last state counts.
    """

    def __init__(self, folder: JobFolder, positions: Mapping[str, int] | None = None, since_ms: int = 0) -> None:
        """Begin at positions in the log files of a job's folder.

        Args:
            positions: By key of a file, as `WrittenLine` has them. A file that is not named, or shorter, is read from
                its start.
            since_ms: What is known to have been written before needs not be read, in milliseconds since the epoch;
                lines from before may be returned all the same.
        """
        self._folder = folder
        self._offsets = dict(positions or {})
        self._since_ms = since_ms
        self._times: dict[str, tuple[tuple[int, int], LogTimes]] = {}
        """By key, with the time and size of the file in which they were found."""
        self._returned_states: dict[str, int] = {}
        """Hashes of the states of lines without an end that were returned, by key of the file."""

    def read(self, to_the_end: bool = False, states: bool = False, fresh: bool = False) -> list[WrittenLine]:
        """Complete lines that were added since the last call.

        At most about 4 MiB of them, so that there may be more although nothing is written; none if there are no more.

        Args:
            to_the_end: Whether text after the last line end counts as a line.
            states: Whether the present state of a line without an end that has carriage returns counts as a line.
            fresh: Whether the last call was a moment ago, so that what was added has just been written.
        """
        with self._folder.entered():
            unread = self._unread(fresh)
            budget, checked = BYTES_PER_READ, False
            for _ in range(_MAX_ATTEMPTS):
                if not unread:
                    break
                until, after = _until(unread, budget)
                if budget >= _MAX_LINE_BYTES * len(unread):
                    until = after  # until then, a file has more than may be a line without an end
                lines, silent = self._read_until(unread, until, to_the_end=to_the_end, states=states, fresh=fresh)
                if lines:
                    return lines
                if silent:
                    unread = [part for part in unread if part.key not in silent and (checked or _opens(part.file.path))]
                    checked = True
                elif until >= max(part.last_ms for part in unread):
                    break
                else:
                    budget *= 2  # none of the lines so far has an end
        return []

    def _unread(self, fresh: bool) -> list[_Unread]:
        """Files with something to read; the one that was written last comes last."""
        files = [(file_key(file.path.name), file) for file in log_files(self._folder)]
        grown = {key: file for key, file in files if self._offsets.get(key, 0) != file.size}
        all_times = {} if fresh else self._times_of(grown)
        unread = []
        for key, file in grown.items():
            times = all_times.get(key, LogTimes())
            begin = self._offsets.get(key)
            if begin is None:
                begin = self._offsets[key] = self._first(file, times)
            if begin > file.size:
                begin = self._offsets[key] = 0  # the job has put something else in its place
            if begin < file.size:
                unread.append(_Unread(file, key, begin, times))
        return unread

    def _first(self, file: LogFile, times: LogTimes) -> int:
        """The position at which to begin in a file of which none is known."""
        before = file.size if file.written_ms < self._since_ms else times.size_before(self._since_ms)
        return _line_begin(file.path, before) if 0 < before <= file.size else 0

    def _times_of(self, files: dict[str, LogFile]) -> dict[str, LogTimes]:
        """What is known of files, by key.

        So many bytes of times are looked at anew, those of the files that were written last first, and of each the
        last ones. Nothing is known of the others.

        Args:
            files: By key; the one that was written last comes last.
        """
        count = max(1, len(files))
        most = min(MAX_ENTRIES, max(_MIN_TIMES, _MAX_TIMES // count))
        share = min(MAX_FILE_BYTES, max(_MIN_TIMES_BYTES, TIMES_BYTES_PER_READ // count))
        budget = TIMES_BYTES_PER_READ
        known: dict[str, tuple[tuple[int, int], LogTimes]] = {}
        for key, file in reversed(files.items()):
            if budget <= 0 and key not in self._times:
                continue
            try:
                with open_plain(log_times_path(file.path)) as opened:
                    status = os.fstat(opened.fileno())
                    version = status.st_mtime_ns, status.st_size
                    before = self._times.get(key)
                    if before is not None and before[0] == version:
                        known[key] = version, before[1].reduced(most)
                    elif (bytes_read := min(share, status.st_size)) <= budget:
                        budget -= bytes_read
                        known[key] = version, read_times(_end_of(opened, status.st_size, bytes_read), most)
            except OSError:
                continue  # none was written, or the job has removed it
        self._times = known
        return {key: times for key, (_, times) in known.items() if times.size <= files[key].size}

    def _read_until(
        self, unread: Sequence[_Unread], until: int, *, to_the_end: bool, states: bool, fresh: bool
    ) -> tuple[list[WrittenLine], set[str]]:
        """The lines of all files until a time, by time, of about 4 MiB at most.

        Also the keys of files that gave none, although they should have: they can't be read, or are shorter now.
        """
        lines: list[tuple[int, WrittenLine]] = []
        silent: set[str] = set()
        most = BYTES_PER_READ
        for part in unread:
            if most <= 0:
                break
            end = part.end_at(until)
            limit = None if end >= part.file.size else end
            if limit is not None and limit <= part.begin:
                continue
            texts, bytes_read = self._read_file(part, most, limit, to_the_end, states)
            if not texts:
                # The beginnings of many lines must not use up what others may take.
                if bytes_read == 0 or end - part.begin > _MAX_LINE_BYTES:
                    silent.add(part.key)
                continue
            most -= bytes_read
            writer = writer_of(part.file.path)
            for text, position in texts:
                known = part.times.ms_at(position)
                # What was written after the last look is as old as the file, at most.
                by = known or part.last_ms
                time = by if known or fresh or part.times.sizes else 0
                lines.append((by, WrittenLine(f"{writer} | {text}", part.key, position, time)))
        lines.sort(key=lambda line: line[0])
        return [line for _, line in lines], silent

    def _read_file(
        self, part: _Unread, max_bytes: int, limit: int | None, to_the_end: bool, states: bool
    ) -> tuple[list[tuple[str, int]], int]:
        """Texts with the positions after them, and the bytes that were read; short lines count as longer ones.

        Args:
            part: What of the file is to be read.
            max_bytes: How many of these bytes to read, at most.
            limit: Up to which position; None: to the end of the file.
            to_the_end: As `read`.
            states: As `read`.
        """
        key = part.key
        offset = self._offsets.get(key, 0)
        texts: list[tuple[str, int]] = []
        bytes_read, rest, at_end = 0, b"", False
        try:
            with open_plain(part.file.path) as file:
                if offset > os.fstat(file.fileno()).st_size:
                    offset = 0  # the job has put something else in its place
                file.seek(offset)
                while bytes_read < max_bytes and not at_end:
                    wanted = CHUNK_BYTES if limit is None else min(CHUNK_BYTES, limit - offset - len(rest))
                    chunk = file.read(wanted) if wanted > 0 else b""
                    at_end = len(chunk) < CHUNK_BYTES
                    *whole, rest = (rest + chunk).split(b"\n")
                    bytes_read += max(len(chunk), _MIN_LINE_COST * len(whole))
                    for line in whole:
                        *parts, last = _parts(line)
                        for piece in parts:
                            offset += len(piece)
                            self._add_part(texts, key, piece, offset)
                        offset += len(last) + 1
                        self._add(texts, key, last, offset)
                        self._returned_states.pop(key, None)
                    *parts, rest = _parts(rest)
                    for piece in parts:
                        offset += len(piece)
                        self._add_part(texts, key, piece, offset)
        except OSError:
            return [], 0  # the job has removed it, or put something else in its place
        at_end = at_end and limit is None
        if rest and at_end and to_the_end:
            offset += len(rest)
            self._add(texts, key, rest, offset)
        elif at_end and states and b"\r" in rest and (text := last_state(rest)):
            # What comes before its newest state will not be needed any more.
            offset += rest.rstrip(b"\r").rfind(b"\r") + 1
            self._add(texts, key, rest, offset)
            self._returned_states[key] = hash(text)
        self._offsets[key] = offset
        return texts, bytes_read

    def _add_part(self, texts: list[tuple[str, int]], key: str, part: bytes, end: int) -> None:
        """Add a part of a line that is too long. It always counts, so that whoever reads much also gets lines."""
        self._returned_states.pop(key, None)
        texts.append((last_state(part), end))

    def _add(self, texts: list[tuple[str, int]], key: str, line: bytes, end: int) -> None:
        """Add a line or its state, unless it is a state that was returned before the line had its end."""
        text = last_state(line)
        if key not in self._returned_states or (text and hash(text) != self._returned_states[key]):
            texts.append((text, end))


def _until(unread: Sequence[_Unread], budget: int) -> tuple[int, int]:
    """The latest time until which no more than so many bytes were written; the first one at which there was something.

    Then the earliest time until which more were written; where all is less, both are the last time.

    Args:
        unread: Of all files, at least one.
        budget: In bytes.
    """
    parts = [(part, part.first_ms, part.last_ms) for part in unread]
    low, high = min(first for _, first, _ in parts), max(last for _, _, last in parts)
    if sum(part.unread_bytes for part in unread) <= budget:
        return high, high
    while high - low > 1:
        middle = (low + high) // 2
        if sum(part.end_at(middle) - part.begin for part, _, _ in parts) <= budget:
            low = middle
            budget -= sum(part.unread_bytes for part, _, last in parts if last <= low)
            parts = [each for each in parts if each[2] > low]
        else:
            high = middle
            parts = [each for each in parts if each[1] < high]
    return low, high


def _opens(path: Path) -> bool:
    """Whether a file can be read."""
    try:
        with open_plain(path):
            return True
    except OSError:
        return False


def _end_of(file: BinaryIO, size: int, max_bytes: int) -> bytes:
    """The last lines of a file, of so many bytes at most."""
    if size <= max_bytes:
        return file.read(max_bytes)
    file.seek(size - max_bytes)
    return file.read(max_bytes).partition(b"\n")[2]


def log_files(folder: JobFolder) -> list[LogFile]:
    """Log files of workers; the one that was written last comes last."""
    files: list[tuple[int, str, LogFile]] = []
    try:
        with os.scandir(folder.logs) as entries:
            for entry in itertools.islice(entries, 2 * MAX_FILES):
                if entry.name.endswith(LOG_SUFFIX) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    written_ms = min(max(0, status.st_mtime_ns // 1_000_000), _LATEST_MS)
                    file = LogFile(Path(entry.path), status.st_size, written_ms)
                    files.append((status.st_mtime_ns, entry.name, file))
    except OSError:
        return []  # not started yet, or the job has removed it
    return [file for _, _, file in sorted(files, key=lambda each: each[:2])[:MAX_FILES]]


def file_key(name: str) -> str:
    """The key of a log file with any name, in ASCII."""
    return quote(os.fsencode(name), safe="")


def writer_of(path: Path) -> str:
    """Node of a file named `NODE.LOCAL_RANK.log`."""
    return clean_text(path.stem.rpartition(".")[0] or path.stem)


def _line_begin(path: Path, position: int) -> int:
    """Begin of the line in which a position lies, or of the part of it that would be a line."""
    begin = max(0, position - _MAX_LINE_BYTES)
    try:
        with open_plain(path) as file:
            file.seek(begin)
            before = file.read(position - begin)
    except OSError:
        return 0
    return begin + before.rfind(b"\n") + 1


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


def last_state(line: bytes) -> str:
    """What of a line would be seen on a terminal: its last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
