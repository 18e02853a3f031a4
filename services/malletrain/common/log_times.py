"""When the parts of a log were written: beside each worker's log lies a file of sizes, and when it was first as large.

Workers write their logs by themselves, and their lines need not say when. So whoever has started a worker looks about
once a second how large its log is (`LogTimesWriter`), and JobManager tells by that when a line was written.

The file is text, a line "SIZE UNIX_MS" for each look at which the log had grown. The job can write anything there:
what makes no sense is passed over, and a time is only as true as the job lets it be.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.accounts import Account, acting_as
from malletrain.common.files import open_log, open_plain, write_atomically
from malletrain.common.job_folder import LOG_SUFFIX, log_times_path
from malletrain.common.tasks import start_thread

MAX_ENTRIES = 4096
"""In a file; older ones are thinned."""
MAX_FILE_BYTES = MAX_ENTRIES * 48
_LATEST_MS = 1 << 53
_MAX_SIZE = 1 << 60
_MAX_DIGITS = 19


@dataclass(frozen=True)
class LogTimes:
    """Sizes of a log, and when it was first seen as large.

    Attributes:
        sizes: In bytes, ascending.
        times: For each, in milliseconds since the epoch, not descending.
    """

    sizes: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The last size, in bytes; 0 if there is none."""
        return self.sizes[-1] if self.sizes else 0

    @property
    def last_ms(self) -> int:
        """The last time, in milliseconds since the epoch; 0 if there is none."""
        return self.times[-1] if self.times else 0

    def after_look(self, size: int, now_ms: int) -> LogTimes:
        """The times after one more look at the log.

        Args:
            size: How large the log is, in bytes. Less than before: it was cut, and what was known no longer holds.
            now_ms: When, in milliseconds since the epoch. A clock that was put back stands still.
        """
        if size == self.size:
            return self
        if size < self.size:
            return LogTimes((size,), (now_ms,)) if size else LogTimes()
        return LogTimes((*self.sizes, size), (*self.times, max(now_ms, self.last_ms)))

    def thinned(self) -> LogTimes:
        """Every other entry of the older half: what is new stays as exact as it is, what is old gets coarser."""
        half = len(self.sizes) // 2
        # An entry says by when all up to its size was written, so the later one of two is kept.
        return LogTimes(self.sizes[1:half:2] + self.sizes[half:], self.times[1:half:2] + self.times[half:])

    def reduced(self, max_entries: int) -> LogTimes:
        """At most about so many entries, evenly chosen; the last one stays."""
        step = -(-len(self.sizes) // max(1, max_entries))
        if step <= 1:
            return self
        begin = (len(self.sizes) - 1) % step
        return LogTimes(self.sizes[begin::step], self.times[begin::step])

    def ms_at(self, position: int) -> int:
        """When a log had reached a position, in milliseconds since the epoch; 0: after the last look."""
        place = bisect_left(self.sizes, position)
        return self.times[place] if place < len(self.sizes) else 0

    def size_before(self, unix_ms: int) -> int:
        """The largest size that the log is known to have had before a time, in bytes."""
        place = bisect_left(self.times, unix_ms)
        return self.sizes[place - 1] if place else 0

    def text(self) -> str:
        """The content of the file that holds these times."""
        return "".join(map(entry_text, self.sizes, self.times))


def entry_text(size: int, unix_ms: int) -> str:
    """One line of the file."""
    return f"{size} {unix_ms}\n"


def read_times(content: bytes, max_lines: int = MAX_ENTRIES) -> LogTimes:
    """What a file says; lines that make no sense are passed over.

    No more than the last `MAX_ENTRIES` lines are looked at: whoever has planted the file pays for no more work.

    Args:
        content: Of the file, as much as was read.
        max_lines: At how many lines to look, evenly chosen among these, the last one included.
    """
    lines = content[:MAX_FILE_BYTES].removesuffix(b"\n").rsplit(b"\n", MAX_ENTRIES)[-MAX_ENTRIES:]
    step = -(-len(lines) // max(1, max_lines))
    sizes: list[int] = []
    times: list[int] = []
    for line in lines[(len(lines) - 1) % step :: step]:
        size, _, unix_ms = line.partition(b" ")
        if not (_is_number(size) and _is_number(unix_ms)):
            continue
        size_then, at = int(size), int(unix_ms)
        if not (0 < size_then < _MAX_SIZE and 0 < at < _LATEST_MS):
            continue
        if sizes and size_then <= sizes[-1]:
            sizes, times = [], []  # it was cut
        elif times and at < times[-1]:
            continue
        sizes.append(size_then)
        times.append(at)
    return LogTimes(tuple(sizes), tuple(times))


def _is_number(text: bytes) -> bool:
    return len(text) <= _MAX_DIGITS and text.isdigit()


LOOK_SECONDS = 1.0
MAX_LOGS = 256
"""That one writer looks at; of more, those that were begun last."""
MAX_BYTES_PER_LOOK = 4 * MAX_FILE_BYTES
"""Of what earlier writers left, about, of all logs together: a job can plant it, and it is read outside its cgroup."""


@dataclass(frozen=True)
class _Known:
    """What is known of a log: which file it is, as device and number, and its times."""

    file: tuple[int, int]
    times: LogTimes


class LogTimesWriter:
    """Looks at logs about once a second. `watch` and `close` may be called from any thread."""

    def __init__(
        self,
        warn: Callable[[str], object],
        account: Account | None = None,
        now: Callable[[], float] = time.time,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Begin without a log, and without a thread.

        Args:
            warn: Told once for each log whose times can't be written.
            account: Whose the logs are; None: this process's own.
            now: The time, in seconds since the epoch.
            look_seconds: Between two looks.
        """
        self._warn = warn
        self._account = account
        self._now = now
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._logs: OrderedDict[Path, _Known | None] = OrderedDict()
        self._warned: set[Path] = set()
        self._ending: set[Path] = set()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, *logs: Path) -> None:
        """Look at logs from now on, whether they are there yet or not; only at those whose names end with `.log`."""
        with self._lock:
            for log in logs:
                if log.suffix != LOG_SUFFIX:
                    continue  # the file beside it could be itself
                self._ending.discard(log)
                self._logs.setdefault(log)
                self._logs.move_to_end(log)
            while len(self._logs) > MAX_LOGS:
                self._drop(next(iter(self._logs)))
            if self._thread is None:
                # When a line was written is not worth the end of an agent or a supervisor, whose threads end it.
                self._thread = start_thread(self._run, "times of logs", self._take_failure)

    def forget(self, log: Path) -> None:
        """Look at a log once more, and then not again, unless it is to be watched again before."""
        with self._lock:
            if log in self._logs:
                self._ending.add(log)

    def close(self, seconds: float = 0.0) -> None:
        """Look once more, and end."""
        self._closing.set()
        if self._thread is not None and seconds > 0:
            self._thread.join(seconds)

    def look(self) -> None:
        """Look at all logs now; for the thread."""
        with self._lock:
            logs = [(log, known, log in self._ending) for log, known in self._logs.items()]
        left = MAX_BYTES_PER_LOOK
        for log, known, ends in logs:
            if known is None and left <= 0:
                continue  # its turn comes with the next looks
            seen, error = known, None
            try:
                with acting_as(self._account):
                    seen, error, read = self._look_at(log, known)
                left -= read
            except OSError as raised:
                error = raised
            with self._lock:
                if log in self._logs:
                    self._logs[log] = seen
                is_known = error is None or isinstance(error, FileNotFoundError) or log in self._warned
                if not is_known:
                    self._warned.add(log)
                if ends and log in self._ending:
                    self._drop(log)
            if not is_known:
                self._warn(f"when {log.name!r} was written is not kept: {error}")

    def _drop(self, log: Path) -> None:
        del self._logs[log]
        self._ending.discard(log)
        self._warned.discard(log)

    def _take_failure(self, error: BaseException) -> None:
        """Say so; the next log that is to be watched begins another thread."""
        with self._lock:
            self._thread = None
        self._warn(f"when logs were written is not kept for now: {error!r}")

    def _run(self) -> None:
        while not self._closing.wait(self._look_seconds):
            self.look()
        self.look()

    def _look_at(self, log: Path, known: _Known | None) -> tuple[_Known | None, OSError | None, int]:
        """What is known of a log now, why its times could not be read or written, and how many bytes were read.

        What could not be written is known all the same: nothing is read or made again at each look.

        Raises:
            OSError: there is no such log.
        """
        status = log.lstat()
        if not stat.S_ISREG(status.st_mode):
            return None, None, 0
        file, path = (status.st_dev, status.st_ino), log_times_path(log)
        error: OSError | None = None
        read = 0
        if known is None:
            try:
                before, read = _read_stored(path)
            except OSError as raised:
                before, error = LogTimes(), raised
        elif known.file == file:
            before = known.times
        else:
            before = LogTimes()  # the job has put another in its place
        after = before.after_look(status.st_size, int(self._now() * 1000))
        if after is before:
            same = known is not None and known.file == file
            return known if same else _Known(file, after), error, read
        grown = bool(before.sizes) and len(after.sizes) == len(before.sizes) + 1
        whole = not grown or len(after.sizes) > MAX_ENTRIES
        if len(after.sizes) > MAX_ENTRIES:
            after = after.thinned()
        if error is None:
            error = _write(path, after, whole)
        return _Known(file, after), error, read


def _write(path: Path, times: LogTimes, whole: bool) -> OSError | None:
    """Write all times, or add the last; returns why that can't be done."""
    try:
        if whole:
            write_atomically(path, times.text(), mode=0o600, sync=False)
        else:
            _append(path, entry_text(times.size, times.last_ms))
    except OSError as error:
        return error
    return None


def _read_stored(path: Path) -> tuple[LogTimes, int]:
    """What an earlier writer left, and how many bytes it is."""
    try:
        with open_plain(path) as file:
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return LogTimes(), 0
    return read_times(content), len(content)


def _append(path: Path, text: str) -> None:
    with open_log(path) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise OSError(f"{path.name!r} is not the file that was written")
        file.write(text.encode())
