"""Writes down when the logs of workers grow; see `log_times.py`. A thread of its own, since disks may not answer."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from malletrain.common.accounts import Account, acting_as
from malletrain.common.files import open_log, open_plain, write_atomically
from malletrain.common.job_folder import LOG_SUFFIX, log_times_path
from malletrain.common.log_times import MAX_ENTRIES, MAX_FILE_BYTES, LogTimes, entry_text, read_times
from malletrain.common.tasks import start_thread

LOOK_SECONDS = 1.0
MAX_LOGS = 1024
"""That one process looks at; of more, those that were begun last."""


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
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, *logs: Path) -> None:
        """Look at logs from now on, whether they are there yet or not; only at those whose names end with `.log`."""
        with self._lock:
            for log in logs:
                if log.suffix != LOG_SUFFIX:
                    continue  # the file beside it could be itself
                self._logs.setdefault(log)
                self._logs.move_to_end(log)
            while len(self._logs) > MAX_LOGS:
                self._warned.discard(self._logs.popitem(last=False)[0])
            if self._thread is None:
                self._thread = start_thread(self._run, "times of logs")

    def close(self, seconds: float = 0.0) -> None:
        """Look once more, and end.

        Args:
            seconds: How long to wait for that.
        """
        self._closing.set()
        if self._thread is not None and seconds > 0:
            self._thread.join(seconds)

    def look(self) -> None:
        """Look at all logs now; for the thread."""
        with self._lock:
            logs = list(self._logs.items())
        for log, known in logs:
            try:
                with acting_as(self._account):
                    seen = self._look_at(log, known)
            except FileNotFoundError:
                continue  # not begun yet, or removed
            except OSError as error:
                if log not in self._warned:
                    self._warned.add(log)
                    self._warn(f"when {log.name} was written is not kept: {error}")
                continue
            with self._lock:
                if log in self._logs:
                    self._logs[log] = seen

    def _run(self) -> None:
        while not self._closing.wait(self._look_seconds):
            self.look()
        self.look()

    def _look_at(self, log: Path, known: _Known | None) -> _Known | None:
        found = log.lstat()
        if not stat.S_ISREG(found.st_mode):
            return None
        file, path = (found.st_dev, found.st_ino), log_times_path(log)
        if known is None:
            before = _stored(path)
        elif known.file == file:
            before = known.times
        else:
            before = LogTimes()  # the job has put another in its place
        after = before.seen(found.st_size, int(self._now() * 1000))
        if after is before:
            return known if known is not None and known.file == file else _Known(file, after)
        if len(after.sizes) == len(before.sizes) + 1 and before.sizes and len(after.sizes) <= MAX_ENTRIES:
            _append(path, entry_text(after.size, after.last_ms))
        else:
            after = after.thinned() if len(after.sizes) > MAX_ENTRIES else after
            write_atomically(path, after.text(), mode=0o600, sync=False)
        return _Known(file, after)


def _stored(path: Path) -> LogTimes:
    try:
        with open_plain(path) as file:
            return read_times(file.read(MAX_FILE_BYTES))
    except FileNotFoundError:
        return LogTimes()


def _append(path: Path, text: str) -> None:
    with open_log(path) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise OSError(f"{path.name} is not the file that was written")
        file.write(text.encode())
