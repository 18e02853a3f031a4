"""The function `report`: writes one record per global batch to the ring without a system call; keeps the sidecar alive.

The sidecar process is started, and another one if it ends.
"""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from malletrain.client.job_context import JobContext
from malletrain.client.ring import RECORD, RECORD_OFFSET, RECORD_SHIFT, Ring
from malletrain.client.warn_once import WarnOnce
from malletrain.common.environment import PYTHON
from malletrain.common.job_folder import LOGS_FOLDER, SIDECAR_LOG, TOKEN_FILE, undelivered_mark

RESTART_NS = 10_000_000_000
"""Shortest time between two starts of a sidecar, in nanoseconds."""

Process = subprocess.Popen[bytes]
StartSidecar = Callable[[JobContext, Ring, str], Process]


def start_sidecar(job: JobContext, ring: Ring, reporter_id: str) -> Process:
    """Start a sidecar for a ring, in the caller's session and in a process group of its own.

    When the trainer's process group is killed, the sidecar goes on, and delivers what the trainer has reported. It
    shares no stream with the trainer, so that it does not keep a pipe of the launcher open. Its messages go to
    `logs/sidecar.log` in the job's folder.

    Raises:
        OSError: the process can't be started.
        ValueError: the path of the interpreter is not known.
    """
    # -P: modules in the trainer's working directory must not hide those that the sidecar imports.
    command = [
        *(_interpreter(), "-P", "-m", "malletrain.client.sidecar", f"/dev/fd/{ring.fd}"),
        *("--monitor", job.monitor, "--job", job.id, "--reporter", reporter_id),
        *("--slots-per-node", str(job.slots_per_node), "--trainer", str(os.getpid())),
        *("--lineage", job.lineage),
        *("--token-file", str(job.directory / TOKEN_FILE)),
    ]
    _mark_undelivered(job.directory, reporter_id)
    log = job.directory / LOGS_FOLDER / SIDECAR_LOG
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stderr = log.open("ab")
    except OSError:
        return _start(command, ring, subprocess.DEVNULL)
    with stderr:
        return _start(command, ring, stderr.fileno())


def _mark_undelivered(job_folder: Path, reporter_id: str) -> None:
    """Have the supervisor wait for the sidecar at the end, which may only just be starting then.

    Where that can't be said, it waits for a short time only. Marks of earlier reporters go: the newest one goes on from
    what they had.
    """
    mark = undelivered_mark(job_folder, reporter_id)
    with suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        for earlier in mark.parent.iterdir():
            earlier.unlink(missing_ok=True)  # its sidecar may remove it at this moment
        mark.touch()


def _interpreter() -> str:
    """The interpreter that the supervisor or agent runs with; the script's own may have no gRPC.

    Raises:
        ValueError: neither path is known.
    """
    told = os.environ.get(PYTHON, "")
    if os.access(told, os.X_OK):
        return told
    if not sys.executable:
        raise ValueError("sys.executable: expected the path of the Python interpreter, got nothing")
    return sys.executable


def _start(command: list[str], ring: Ring, stderr: int) -> Process:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(ring.fd,),
        process_group=0,
    )


class SidecarProcess:
    """Keeps one sidecar running for a ring."""

    def __init__(self, start: Callable[[], Process], warnings: WarnOnce) -> None:
        """Nothing is started before the first `keep_running`."""
        self._start = start
        self._warnings = warnings
        self._process: Process | None = None
        self._started_ns = 0

    @property
    def pid(self) -> int | None:
        """Process id of the sidecar; None if there is none."""
        return None if self._process is None else self._process.pid

    def keep_running(self, now_ns: int) -> None:
        """Start a sidecar if there is none, at most every 10 s.

        Args:
            now_ns: Nanoseconds since the epoch.
        """
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process = None
            self._warnings.warn("sidecar ended", f"the sidecar ended with status {status}; it is started again")
        # If the clock has been set back, the next start is not delayed.
        if 0 <= now_ns - self._started_ns < RESTART_NS:
            return
        self._started_ns = now_ns
        try:
            self._process = self._start()
        except (OSError, ValueError, MemoryError, subprocess.SubprocessError) as error:
            self._warnings.warn("sidecar start", f"the sidecar can't be started, trying again every 10 s: {error}")


CHECK_NS = 100_000_000
"""Time between two checks of rank, number of workers and sidecar, in nanoseconds."""

MAX_SAMPLES = 2**40
"""Largest global batch that Monitor accepts."""

MAX_POSITION = 2**60
"""Largest sample position that Monitor accepts."""

MAX_WORKERS = 2**24
"""Largest number of worker processes that Monitor accepts."""


class ReportFunction(Protocol):
    """The type of `report`."""

    def __call__(self, samples: int, position: int | None = None, workers: int | None = None) -> None:
        """Report one global batch."""


class ReportContext(Protocol):
    """What `report` asks at intervals: where to write and how many workers there are."""

    def check(self, now_ns: int) -> tuple[Ring | None, int]:
        """The ring to write to (None: this process does not report; a new one is empty) and the number of workers."""

    def reject(self, error: Exception) -> None:
        """Count an invalid call of `report`, and warn."""


def make_report(context: ReportContext, clock: Callable[[], int]) -> tuple[ReportFunction, Callable[[], None]]:
    """Make `report`, and a function that makes its next call ask the context again.

    Everything that a call needs is a variable of the closure: an attribute look-up costs as much as writing the record.

    Args:
        context: Asked every 100 ms at most.
        clock: Nanoseconds since the epoch.
    """
    pack_into = RECORD.pack_into
    base, step, max_samples, max_position = RECORD_OFFSET, 1 << RECORD_SHIFT, MAX_SAMPLES, MAX_POSITION
    nothing = memoryview(bytearray())
    ring: Ring | None = None
    buffer = nothing
    sequence = offset = end = 0
    world = 1
    checked = due = 0

    def look(now: int) -> None:
        nonlocal ring, buffer, sequence, offset, end, world, checked, due
        # Set before the check: one that fails is not repeated at every batch.
        checked, due = now, now + CHECK_NS
        new_ring, world = context.check(now)
        if new_ring is not ring:
            ring = new_ring
            buffer = nothing if new_ring is None else memoryview(new_ring.buffer)[: new_ring.end_of_records]
            sequence, offset, end = 0, base, len(buffer)

    def report(samples: int, position: int | None = None, workers: int | None = None) -> None:
        """Report that one global batch has been trained: the one line in the training loop.

        Call it after the optimizer step, from one thread. Only calls at rank 0 count, so every worker may call it.
        Outside MalleTrain it does nothing. It never raises, waits or makes a system call. A call with invalid arguments
        is ignored, with one warning on stderr.

        Args:
            samples: Samples in this step over all workers (the global batch), 0 to 2**40.
            position: The job's own sample counter after this step. With it MalleTrain detects rollbacks.
            workers: Number of worker processes; detected if left out.
        """
        nonlocal sequence, offset
        try:
            now = clock()
            if not checked <= now < due:
                look(now)
            if ring is None:
                return
            if type(samples) is not int or not 0 <= samples <= max_samples:
                samples = _within("samples", samples, 0, MAX_SAMPLES)
            if position is None:
                position = -1
            elif type(position) is not int or not 0 <= position <= max_position:
                position = _within("position", position, 0, MAX_POSITION)
            workers = world if workers is None else _within("workers", workers, 1, MAX_WORKERS)
            # Before the record is written: a signal handler can interrupt at a call only, so that no number is used
            # twice or left out.
            sequence += 1
            offset += step
            if offset == end:
                offset = base
            # The largest number last: the partial sums fit into one machine word.
            check = sequence + samples + position + workers + now
            pack_into(buffer, offset, sequence, now, samples, position, workers, check)
        except Exception as error:  # noqa: BLE001 - whatever happens here, the training loop continues
            context.reject(error)

    def expire() -> None:
        nonlocal checked, due
        checked = due = 0

    return report, expire


def new_reporter_id(node: str) -> str:
    """A unique identifier of this process as a reporter."""
    return f"{node or os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}"[-256:]


def _within(name: str, value: int, minimum: int, maximum: int) -> int:
    number = operator.index(value)
    if not minimum <= number <= maximum:
        raise ValueError(f"{name}: expected {minimum} to {maximum}, got {number}")
    return number
