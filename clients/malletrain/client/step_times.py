"""What each worker tells of its steps: a file per rank in the job's folder, which the sidecar of rank 0 reads.

No process is added for it, and no message from worker to worker. A file system that hangs holds threads of their own,
neither the training nor the reports.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from malletrain.client.own_times import FILE_BYTES, OwnTimes, WorkerTimes, from_bytes, to_bytes
from malletrain.common import environment as env
from malletrain.common.job_folder import STEP_TIMES_FOLDER

MAX_WORKERS = 4096
"""Workers that are told of; those of higher ranks are not."""
READ_SECONDS = 10.0
"""Time between two looks at the files."""


class StepTimesTeller:
    """Has this worker's steps measured, and writes what they come to."""

    def __init__(
        self,
        environ: Mapping[str, str],
        modules: Mapping[str, ModuleType],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Measure nothing yet.

        Args:
            modules: Loaded modules; torch is never imported here.
            clock: Seconds of a monotonic clock.
        """
        self._environ = environ
        self._modules = modules
        self._clock = clock
        self._off = environ.get(env.STEP_TIMES) == "0"
        self._watches = False
        self._place = (-1, 0)
        self._times = OwnTimes(clock())
        self._writing: threading.Thread | None = None

    def tell(self, rank: int, workers: int) -> None:
        """Begin to measure, or write what there is to tell. Called about once a second; never waits."""
        if self._off or workers < 2 or rank >= MAX_WORKERS:
            return
        if self._place != (rank, workers):
            self._place, self._times = (rank, workers), OwnTimes(self._clock())
        if not self._watches:
            self._watch()
        node, folder = self._environ.get(env.NODE, ""), self._environ.get(env.JOB_DIR, "")
        if not node or not folder or (self._writing is not None and self._writing.is_alive()):
            return
        if (times := self._times.take(rank, node, self._clock())) is not None:
            place = Path(folder, STEP_TIMES_FOLDER, str(rank))
            self._writing = threading.Thread(target=_write, args=(place, times), name="malletrain steps", daemon=True)
            self._writing.start()

    def _watch(self) -> None:
        if "torch" not in self._modules:
            return
        self._watches = True
        try:
            watch = importlib.import_module("malletrain.client.step_watch")
            watch.StepWatch(lambda own, whole: self._times.add(own, whole)).install()
        except Exception:  # noqa: BLE001 - with this torch it can't be measured
            self._off = True


def _write(path: Path, times: WorkerTimes) -> None:
    try:
        content = to_bytes(times)
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, content, 0)
        finally:
            os.close(file)
    except (OSError, ValueError):
        return


class StepTimesReader:
    """Reads the files of all workers, now and then."""

    def __init__(self, folder: Path | None) -> None:
        """Read nothing yet.

        Args:
            folder: The job's folder; None: it is not known.
        """
        self._folder = folder
        self._looked: float | None = None
        self._seen: dict[int, WorkerTimes] = {}
        self._reading: threading.Thread | None = None
        self._fresh: list[WorkerTimes] = []

    @property
    def is_reading(self) -> bool:
        """Whether a look has not ended yet."""
        return self._reading is not None and self._reading.is_alive()

    def look(self, workers: int, now: float) -> None:
        """Begin to read in a thread of its own, if it is time and the last one has ended.

        Args:
            workers: Number of workers of the job.
            now: Monotonic time in seconds.
        """
        if self._folder is None or workers < 2 or self.is_reading:
            return
        if self._looked is not None and now - self._looked < READ_SECONDS:
            return
        self._looked = now
        arguments = (self._folder / STEP_TIMES_FOLDER, min(workers, MAX_WORKERS))
        self._reading = threading.Thread(target=self._read, args=arguments, name="step times", daemon=True)
        self._reading.start()

    def take(self) -> list[WorkerTimes]:
        """What workers have told since the last call. What was there at the first look may be of another start."""
        if not self._fresh or self.is_reading:
            return []
        times, self._fresh = self._fresh, []
        return times

    def _read(self, folder: Path, workers: int) -> None:
        first = not self._seen
        seen = {rank: times for rank in range(workers) if (times := _read_one(folder / str(rank), rank)) is not None}
        fresh = [times for rank, times in seen.items() if self._seen.get(rank) != times]
        self._seen = seen
        self._fresh = [] if first else fresh


def _read_one(path: Path, rank: int) -> WorkerTimes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return from_bytes(os.read(file, FILE_BYTES), rank)
        finally:
            os.close(file)
    except OSError:
        return None
