"""The client of one training process: the state behind the functions of `malletrain.client`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import SupportsFloat, SupportsIndex

from malletrain.client.commands import Command, commands_after
from malletrain.client.complaints import Complaints, describe
from malletrain.client.completion import write_completion
from malletrain.client.environment import JOB_ID, JobContext, read_job, read_membership
from malletrain.client.launching import SidecarKeeper, StartSidecar, start_sidecar
from malletrain.client.reporting import make_report, new_reporter_id
from malletrain.client.ring import CLOSED, COMMANDS, STOPS, Ring, create_ring
from malletrain.client.termination import Termination

_THOROUGH_NS = 1_000_000_000
_HOROVOD = "horovod.torch"


class Client:
    """Reports for one process and brings it commands.

    Attributes:
        report: The function for the training loop.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        modules: Mapping[str, ModuleType] = sys.modules,
        clock: Callable[[], int] = time.time_ns,
        start: StartSidecar = start_sidecar,
    ) -> None:
        """Nothing happens before the first report.

        Args:
            environ: The process environment.
            modules: The loaded modules.
            clock: Nanoseconds since the epoch.
            start: Starts a sidecar.
        """
        self._environ = environ
        self._modules = modules
        self._clock = clock
        self._start = start
        self._complaints = Complaints()
        self._termination = Termination()
        self._ring: Ring | None = None
        self._keeper: SidecarKeeper | None = None
        self._forked = False
        self._workers = 1
        self._checked_ns = 0
        self._rejected = 0
        self._taken = self._committed = 0
        self._termination_committed = False
        self.report, self._expire = make_report(self, clock)
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def rejected(self) -> int:
        """Calls of `report` that could not be used."""
        return self._rejected

    @property
    def sidecar_pid(self) -> int | None:
        """Process id of the sidecar; None while there is none."""
        return None if self._keeper is None else self._keeper.pid

    def refresh(self) -> None:
        """Look for rank and world size anew at the next report."""
        self._checked_ns = 0
        self._expire()

    def check(self, now_ns: int) -> tuple[Ring | None, int]:
        """Where `report` writes to and for how many workers; starts the ring and its sidecar when they are needed."""
        thorough = not 0 <= now_ns - self._checked_ns < _THOROUGH_NS
        # Horovod's ranks change at a reset; the launcher's variables do not change under a running worker.
        if not thorough and _HOROVOD not in self._modules:
            return self._ring, self._workers
        self._checked_ns = now_ns
        if self._forked or JOB_ID not in self._environ:
            return None, 1
        membership = read_membership(self._environ, self._modules)
        self._workers = membership.workers
        if membership.rank != 0:
            self._hand_over()
            return None, 1
        if self._ring is None:
            self._begin()
            thorough = True
        if thorough and self._keeper is not None:
            self._keeper.keep(now_ns)
        return self._ring, self._workers

    def reject(self, error: Exception) -> None:
        """Count a report that could not be used, and say so once."""
        self._rejected += 1
        self._complaints.say("report", f"report(): {describe(error)}")

    def commands(self) -> list[Command]:
        """Commands that have come since the last call."""
        ring = self._ring
        if ring is None or ring.words[COMMANDS] == self._taken:
            return []
        found, self._taken = commands_after(ring, self._taken)
        return found

    def should_commit(self) -> bool:
        """Whether a command or SIGTERM has come since the last call that said so."""
        ring = self._ring
        asked = False
        if ring is not None and ring.words[COMMANDS] != self._committed:
            self._committed = ring.words[COMMANDS]
            asked = True
        if self._termination.seen and not self._termination_committed:
            self._termination_committed = asked = True
        return asked

    def should_stop(self) -> bool:
        """Whether STOP or SIGTERM has come."""
        ring = self._ring
        return self._termination.seen or (ring is not None and ring.words[STOPS] > 0)

    def install_signal_handler(self) -> bool:
        """Turn SIGTERM into `should_commit` and `should_stop`; False outside the main thread."""
        return self._termination.install()

    def current_job(self) -> JobContext | None:
        """The job in the environment.

        Raises:
            ValueError: a variable of it is missing or not what it should be.
        """
        return read_job(self._environ)

    def done(self, metrics: Mapping[str, SupportsFloat] | None = None, samples: SupportsIndex | None = None) -> None:
        """Write `completed.json`, once, at rank 0."""
        try:
            job = read_job(self._environ)
            if job is None or self._forked or read_membership(self._environ, self._modules).rank != 0:
                return
            write_completion(job.directory, metrics, samples, self._clock() / 1e9, self._complaints)
        except (OSError, ValueError) as error:
            self._complaints.say("done", f"done(): the completion could not be written: {error}")

    def _begin(self) -> None:
        process = self._modules.get("multiprocessing.process")
        if process is not None and process.current_process().daemon:
            # A data loader's worker, started before the first report: the trainer is its parent.
            self._forked = True
            return
        try:
            job = read_job(self._environ)
            if job is None:
                return
            ring = create_ring()
        except (OSError, ValueError) as error:
            self._complaints.say("begin", f"batches can't be reported: {error}")
            return
        reporter_id = new_reporter_id(job.node)
        self._keeper = SidecarKeeper(lambda: self._start(job, ring, reporter_id), self._complaints)
        self._ring = ring
        self._taken = self._committed = 0

    def _hand_over(self) -> None:
        """Another process is rank 0 now: let the sidecar deliver what is left and end."""
        if self._ring is not None:
            self._ring.words[CLOSED] = 1
            self._drop_ring()

    def _after_fork(self) -> None:
        """In a forked child of a process that reports: the records and the sidecar are its parent's."""
        if self._ring is not None:
            self._forked = True
            self._drop_ring()
            self.refresh()

    def _drop_ring(self) -> None:
        # The mapping goes when the last reference to it goes, which `report` may hold.
        if self._ring is not None:
            os.close(self._ring.fd)
        self._ring = self._keeper = None
