"""The state of the client in one training process, behind the functions of `malletrain.client`."""

from __future__ import annotations

import json
import math
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import NamedTuple, SupportsFloat, SupportsIndex

from malletrain.client.commands import Command, CommandType, commands_after
from malletrain.client.job_context import (
    HOROVOD_MODULES,
    JobContext,
    LeaveRequest,
    read_job,
    read_rank,
    released_seconds,
    seconds_left,
)
from malletrain.client.metric_log import MetricLog
from malletrain.client.phases import DeclaredPhase, Phases
from malletrain.client.reporting import SidecarProcess, StartSidecar, make_report, new_reporter_id, start_sidecar
from malletrain.client.ring import (
    CHECKPOINT_NANOSECONDS,
    CLOSED,
    COMMANDS,
    FEED_NANOSECONDS,
    FEED_PREPARED,
    FEED_PROCESSES,
    FEED_RATES,
    FEED_RECEIVED,
    FEED_RUNNING,
    SAVE_ERROR,
    SAVE_FAILURES,
    SAVES,
    STOPS,
    Ring,
    create_ring,
    rate_word,
)
from malletrain.client.step_times import StepTimesTeller
from malletrain.client.trackers import TrackerNote
from malletrain.client.warn_once import WarnOnce, describe
from malletrain.common.environment import JOB_ID
from malletrain.common.files import write_atomically
from malletrain.common.job_folder import COMPLETION_FILE


def write_completion(
    directory: Path,
    metrics: Mapping[str, SupportsFloat] | None,
    samples: SupportsIndex | None,
    unix_seconds: float,
    warnings: WarnOnce,
) -> None:
    """Write `completed.json` atomically. An existing file is kept.

    Metrics that are not finite numbers are left out with a warning: a wrong metric must not keep the file from being
    written.

    Args:
        directory: The job's folder.
        metrics: Names and numbers; None for none.
        samples: The job's sample counter; None if not known.
        unix_seconds: Time of completion in seconds since the epoch.
        warnings: Prints what is wrong with the arguments.

    Raises:
        OSError: the file can't be written.
    """
    path = directory / COMPLETION_FILE
    if path.exists():
        return
    content = {
        "samples": _count(samples, warnings),
        "metrics": _finite(metrics, warnings),
        "unix_seconds": unix_seconds,
    }
    write_atomically(path, json.dumps(content))


def _count(samples: SupportsIndex | None, warnings: WarnOnce) -> int | None:
    if samples is None:
        return None
    try:
        count = operator.index(samples)
    except Exception as error:  # noqa: BLE001 - a user's object may raise anything; the file must be written
        warnings.warn(
            "done samples",
            f"done(): samples: expected a whole number, got {type(samples).__name__} ({describe(error)})",
        )
        return None
    if count < 0:
        warnings.warn("done samples", f"done(): samples: expected at least 0, got {count}")
        return None
    return count


def _finite(metrics: Mapping[str, SupportsFloat] | None, warnings: WarnOnce) -> dict[str, float]:
    try:
        entries = list((metrics or {}).items())
    except Exception as error:  # noqa: BLE001 - as above
        warnings.warn(
            "done metrics", f"done(): metrics: expected a mapping, got {type(metrics).__name__} ({describe(error)})"
        )
        return {}
    finite: dict[str, float] = {}
    for name, value in entries:
        try:
            number = float(value)
            key = str(name)
        except Exception as error:  # noqa: BLE001 - as above
            warnings.warn("done metric", f"done(): metrics: expected names and numbers ({describe(error)})")
            continue
        if math.isfinite(number):
            finite[key] = number
        else:
            warnings.warn(f"done {key}", f"done(): metrics[{key!r}]: expected a finite number, got {number}")
    return finite


EVERY_SECONDS = 60.0
"""Usual time between two saves."""
_MAX_SHARE = 0.05
"""Share of the time that saves which nobody has requested may take."""


class CommitInterval:
    """The time since the last save, and how long a save takes, by what the loop is late after it."""

    def __init__(self) -> None:
        """Nothing is due before the loop has asked for the first time."""
        self._asked_at: float | None = None
        self._saved_at = 0.0
        self._usual_seconds = 0.0
        self._save_seconds = 0.0
        self._saving = False

    def due(self, now: float, every: float, *, requested: bool) -> bool:
        """Whether to save at this call: a save is requested, or the last one is long enough ago.

        Args:
            now: Seconds of any clock. A step back begins a new interval.
            every: Least time between two saves that are not requested, in seconds. It is longer where they take long.
            requested: Whether a save is requested.
        """
        if self._asked_at is None or now < self._asked_at:
            self._saved_at = now
        elif self._saving:
            self._save_seconds = max(0.0, now - self._asked_at - self._usual_seconds)
            self._saved_at = now
        else:
            self._usual_seconds = now - self._asked_at
        interval = max(every, self._save_seconds / _MAX_SHARE)
        self._saving = requested or now - self._saved_at >= interval
        self._asked_at = now
        return self._saving


class Termination:
    """Whether the launcher has asked this process to end.

    Attributes:
        seen: Whether SIGTERM has been received since `install`.
        seen_at: When the first one was, in monotonic seconds.
    """

    def __init__(self) -> None:
        self.seen = False
        self.seen_at = 0.0
        self._installed = False

    def install(self) -> bool:
        """Replace the handler of SIGTERM by one that sets the flag. Only the main thread can do that.

        Returns:
            Whether that handler is installed now.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._installed
        signal.signal(signal.SIGTERM, self._note)
        if not self._installed:
            self._installed = True
            os.register_at_fork(after_in_child=self._restore)
        return True

    def _note(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if not self.seen:
            self.seen_at = time.monotonic()
        self.seen = True

    def _restore(self) -> None:
        """Restore the default handler in a forked child: a data loader has to end at SIGTERM."""
        self.seen = False
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


_MAX_RESCALE_SECONDS = 1e6
"""Monitor takes no longer ones."""
_FULL_CHECK_NS = 1_000_000_000
"""Time between two checks of environment and sidecar, in nanoseconds."""


class SavesNoted(NamedTuple):
    """Saves by this process.

    Attributes:
        tried: How many were tried.
        failures: How many have failed since one succeeded.
        error: errno of the newest.
        rescale_seconds: How long saving the state and reading it again takes at a rescale; 0: not known.
    """

    tried: int = 0
    failures: int = 0
    error: int = 0
    rescale_seconds: float = 0.0

    def after(self, error: BaseException | None, rescale_seconds: float) -> SavesNoted:
        """What is noted after another save; error: why it failed, None: it succeeded."""
        if error is None:
            return SavesNoted(self.tried + 1, rescale_seconds=min(max(0.0, rescale_seconds), _MAX_RESCALE_SECONDS))
        number = error.errno if isinstance(error, OSError) else None
        return self._replace(tried=self.tried + 1, failures=self.failures + 1, error=number or 0)


class Client:
    """Reports the batches of one process and receives its commands.

    Attributes:
        report: The function for the training loop.
        log_metrics: The function for what the training comes to, e.g. its loss.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        modules: Mapping[str, ModuleType] = sys.modules,
        clock: Callable[[], int] = time.time_ns,
        start: StartSidecar = start_sidecar,
    ) -> None:
        """Nothing is started before the first report.

        Args:
            environ: Environment of the process.
            modules: Loaded modules.
            clock: Nanoseconds since the epoch.
            start: Starts a sidecar.
        """
        self._environ = environ
        self._modules = modules
        self._clock = clock
        self._start = start
        self._warnings = WarnOnce()
        self._termination = Termination()
        self._ring: Ring | None = None
        self._sidecar: SidecarProcess | None = None
        self._forked = False
        self._workers = 1
        self._checked_ns = 0
        self._rejected = 0
        self._taken = self._committed = 0
        self._termination_committed = False
        self._stop_seen_at: float | None = None
        self._commit_interval = CommitInterval()
        self._saves = SavesNoted()
        self._save_phase_failed = False
        self._step_times = StepTimesTeller(environ, modules)
        self._trackers = TrackerNote(environ, modules, self._warnings)
        self.report, self._expire = make_report(self, clock)
        self._phases = Phases(self._ring_for_phases, clock, self._warnings)
        self._metrics = MetricLog(self._ring_for_metrics, clock, self._warnings)
        self.log_metrics = self._metrics.log
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def rejected(self) -> int:
        """Number of invalid calls of `report`."""
        return self._rejected

    @property
    def sidecar_pid(self) -> int | None:
        """Process id of the sidecar; None if there is none."""
        return None if self._sidecar is None else self._sidecar.pid

    def refresh(self) -> None:
        """Detect rank and number of workers again at the next report."""
        self._checked_ns = 0
        self._expire()

    def check(self, now_ns: int) -> tuple[Ring | None, int]:
        """The ring to write to (None: this process does not report) and the number of workers.

        Creates the ring and starts the sidecar when they are needed. Called by `report` every 0.1 s.

        Args:
            now_ns: Nanoseconds since the epoch.
        """
        full = not 0 <= now_ns - self._checked_ns < _FULL_CHECK_NS
        # Horovod's ranks change at a reset. A launcher's variables do not change while a worker runs.
        if not full and self._modules.keys().isdisjoint(HOROVOD_MODULES):
            return self._ring, self._workers
        self._checked_ns = now_ns
        if self._forked or JOB_ID not in self._environ:
            return None, 1
        rank = read_rank(self._environ, self._modules)
        self._workers = rank.workers
        if full:
            self._step_times.tell(rank.rank, rank.workers)
        if rank.rank != 0:
            self._close_ring()
            return None, 1
        if self._ring is None:
            self._begin()
            full = True
        if full and self._sidecar is not None:
            self._sidecar.keep_running(now_ns)
            self._trackers.look()
        return self._ring, self._workers

    def reject(self, error: Exception) -> None:
        """Count an invalid report, and warn once."""
        self._rejected += 1
        self._warnings.warn("report", f"report(): {describe(error)}")

    def commands(self) -> list[Command]:
        """Commands that have arrived since the last call."""
        ring = self._ring
        if ring is None or ring.words[COMMANDS] == self._taken:
            return []
        commands, self._taken = commands_after(ring, self._taken)
        return commands

    def should_commit(self, every: float | None = EVERY_SECONDS) -> bool:
        """Whether to save after this batch.

        It is True if a command or SIGTERM has arrived since the last call that returned True. At rank 0, it is True
        from time to time without that, so that a node that fails costs little.

        Args:
            every: Least time between two saves that nobody has requested, in seconds; None: there are none. They take a
                twentieth of the time at most: where a save takes long, they are rarer.
        """
        requested = self._commit_requested()
        if self._ring is None or self._forked or every is None:
            return requested
        return self._commit_interval.due(self._clock() / 1e9, every, requested=requested)

    def _commit_requested(self) -> bool:
        ring = self._ring
        asked = False
        if ring is not None and ring.words[COMMANDS] != self._committed:
            self._committed = ring.words[COMMANDS]
            asked = True
        if self._termination.seen and not self._termination_committed:
            self._termination_committed = asked = True
        return asked

    def should_stop(self) -> bool:
        """Whether STOP or SIGTERM has arrived."""
        ring = self._ring
        stop = self._termination.seen or (ring is not None and ring.words[STOPS] > 0)
        if stop and self._stop_seen_at is None:
            self._stop_seen_at = self._termination.seen_at if self._termination.seen else time.monotonic()
        return stop

    def seconds_to_leave(self, *, all_workers: bool = False) -> float | None:
        """How long this process has at most until it ends, in seconds; None: it was not asked to, or it is not known.

        Args:
            all_workers: How long all workers of the job have, of whom some may be on nodes that are released.

        Raises:
            ValueError: as `current_job`.
        """
        job = read_job(self._environ)
        if job is None or not self.should_stop():
            return None
        ring, asked_at = self._ring, self._stop_seen_at or 0.0
        newest = commands_after(ring, max(0, ring.words[COMMANDS] - 1))[0] if ring is not None else []
        released = bool(newest) and newest[-1].type is CommandType.RELEASE_REQUESTED
        workers = read_rank(self._environ, self._modules).workers
        node_seconds = released_seconds(job, all_nodes=all_workers)
        request = LeaveRequest(asked_at, released, workers <= job.slots_per_node, node_seconds)
        return seconds_left(request, job.directory)

    def install_signal_handler(self) -> bool:
        """Make `should_commit` and `should_stop` return True after SIGTERM; False if not called in the main thread."""
        return self._termination.install()

    def note_feed(
        self,
        received: int,
        prepared: int,
        cpu_nanoseconds: int,
        processes: int,
        running: int = 0,
        rates: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Tell what a feed does for this process; see `FeedReport` of monitor.proto. No more than writes to memory."""
        ring = self._ring
        if ring is not None and not self._forked:
            words = ring.words
            words[FEED_RECEIVED], words[FEED_PREPARED] = received, prepared
            words[FEED_NANOSECONDS], words[FEED_PROCESSES] = cpu_nanoseconds, processes
            words[FEED_RUNNING] = running
            told = [rate_word(*rate) for rate in rates]
            for place, word in zip(FEED_RATES, [*told, *(0 for _ in FEED_RATES)], strict=False):
                words[place] = word

    def note_save(self, error: BaseException | None = None, *, rescale_seconds: float = 0.0) -> None:
        """Say how a save of a checkpoint went. No more than writes to memory; safe in any thread.

        While saves fail the job keeps its scale, since a change of it would lose what is not saved.

        Args:
            error: Why it failed; None: it succeeded.
            rescale_seconds: How long saving the state and reading it again takes in seconds, where a rescale goes that
                way. No rescale is expected to be shorter, before the first has been measured. 0: not known.
        """
        self._saves = self._saves.after(error, rescale_seconds)
        self._show_saves()

    def _note_save_phase(self, error: BaseException | None) -> None:
        """Note an error of the disk that leaves a phase of saving, and the end of the next one without any.

        That nothing went wrong in such a phase is no news otherwise: the save may go on in another thread.
        """
        if isinstance(error, OSError) or type(error) is RuntimeError:  # what torch.save raises where a disk is full
            self._save_phase_failed = True
            self.note_save(error)
        elif error is None and self._save_phase_failed:
            self._save_phase_failed = False
            self.note_save()

    def _show_saves(self) -> None:
        ring, noted = self._ring, self._saves
        if ring is not None and not self._forked:
            words = ring.words
            words[SAVES], words[SAVE_FAILURES], words[SAVE_ERROR] = noted.tried, noted.failures, noted.error
            words[CHECKPOINT_NANOSECONDS] = round(noted.rescale_seconds * 1e9)

    def phase(self, name: str) -> DeclaredPhase:
        """A phase in which no batches are trained: `with phase("evaluate"):`.

        It is neither a stall nor part of a step, and may take as long as the job's limit of such a phase. Enter it in
        the thread that reports. It never raises and never waits; outside MalleTrain, and in other processes than rank
        0's, it does nothing.

        An error of the disk that leaves a phase of saving is noted as by `note_save`, until one ends without.

        Args:
            name: start, evaluate, save, or pause for anything else, which has the limit of a step. Another name is a
                pause, with one warning.
        """
        return DeclaredPhase(self._phases, name, self._note_save_phase)

    def current_job(self) -> JobContext | None:
        """The job of this process; None outside MalleTrain.

        Raises:
            ValueError: a variable of the job is missing or has an invalid value.
        """
        return read_job(self._environ)

    def done(self, metrics: Mapping[str, SupportsFloat] | None = None, samples: SupportsIndex | None = None) -> None:
        """Say that the training is complete: rank 0 writes `completed.json`, once.

        Never raises: what goes wrong is printed on stderr.

        Args:
            metrics: Names and finite numbers, shown with the job.
            samples: The job's sample counter.
        """
        try:
            job = read_job(self._environ)
            if job is None or self._forked or read_rank(self._environ, self._modules).rank != 0:
                return
            write_completion(job.directory, metrics, samples, self._clock() / 1e9, self._warnings)
        except (OSError, ValueError) as error:
            self._warnings.warn("done", f"done(): the completion could not be written: {error}")

    def _ring_for_phases(self) -> Ring | None:
        """The ring; a process that has not reported yet begins to do so with its first phase."""
        now = self._clock()
        if self._ring is None or not 0 <= now - self._checked_ns < _FULL_CHECK_NS:
            self._checked_ns = 0
            self.check(now)
        return self._ring

    def _ring_for_metrics(self) -> Ring | None:
        """The ring; None in other processes than rank 0's, which look again once a second."""
        now = self._clock()
        if not 0 <= now - self._checked_ns < _FULL_CHECK_NS:
            self.check(now)
        return self._ring

    def _begin(self) -> None:
        process = self._modules.get("multiprocessing.process")
        if process is not None and process.current_process().daemon:
            # A worker of a data loader that was started before the first report: the trainer is its parent.
            self._forked = True
            return
        try:
            job = read_job(self._environ)
            if job is None:
                return
            ring = create_ring()
        except (OSError, ValueError) as error:
            self._warnings.warn("begin", f"batches can't be reported: {error}")
            return
        reporter_id = new_reporter_id(job.node)
        self._sidecar = SidecarProcess(lambda: self._start(job, ring, reporter_id), self._warnings)
        self._ring = ring
        self._taken = self._committed = 0
        self._show_saves()

    def _close_ring(self) -> None:
        """Another process is rank 0 now: the sidecar delivers what is left and ends."""
        if self._ring is not None:
            self._ring.words[CLOSED] = 1
            self._drop_ring()

    def _after_fork(self) -> None:
        """In a forked child of a process that reports: ring and sidecar belong to the parent."""
        if self._ring is not None:
            self._forked = True
            self._drop_ring()
            self.refresh()

    def _drop_ring(self) -> None:
        # `report` may still hold a reference to the mapping; it is unmapped with the last one.
        if self._ring is not None:
            os.close(self._ring.fd)
        self._ring = self._sidecar = None
        self._phases.forget()
        self._metrics.forget()
