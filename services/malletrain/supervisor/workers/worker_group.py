"""What the event loop asks of the workers of a job, whatever their launcher backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Protocol

from malletrain.common.activity import Idleness
from malletrain.supervisor.loop.releases import Occupants
from malletrain.supervisor.loop.view import CommandProgress
from malletrain.supervisor.workers.failure_watch import FailureWatch
from malletrain.supervisor.workers.root_cause import Failure
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker import Worker
from malletrain.supervisor.workers.worker_exit import ExitFacts, Verdict, WorkerExit
from malletrain.supervisor.workers.worker_pool import WorkerPool


class WorkerGroup(Occupants, Protocol):
    """The workers of one job. Used from the supervisor's main thread only. Times are monotonic seconds.

    Attributes:
        trainers: The worker processes that train.
    """

    trainers: WorkerPool
    _watch: FailureWatch

    @property
    def progress(self) -> CommandProgress:
        """How far the newest command has been carried out."""

    @property
    def failures(self) -> Mapping[str, int]:
        """How many workers have failed by themselves, by host."""

    @property
    def failure(self) -> Failure | None:
        """Why workers of the present generation have failed, once it is settled."""
        return self._watch.newest

    def kill(self, workers: Iterable[Worker]) -> None:
        """Kill workers."""
        self.trainers.kill(workers)

    def delivers(self, hosts: Set[str]) -> bool:
        """Whether a sidecar of workers that have ended on hosts still delivers."""
        return self.trainers.leftovers(hosts)

    def sweep(self, hosts: frozenset[str]) -> None:
        """Kill all processes of the job's workers on hosts, until none is left."""
        self.trainers.sweep(hosts)

    def _workers(self, slots: Iterable[Slot]) -> list[Worker]:
        """The trainers of these slots."""
        return [worker for slot in slots if (worker := self.trainers.get(slot)) is not None]

    def pids(self) -> Iterable[tuple[Slot, int]]:
        """Slot and process id of each worker."""

    def idleness(self, now: float) -> Idleness | None:
        """Whether no process of the workers does anything; None: some do, or it is not known."""

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, sequence: int, hosts: Mapping[str, int], now: float) -> None:
        """Use these hosts from now on.

        Args:
            sequence: Grows with every command; a command with a lower one is ignored.
            hosts: Host to worker processes there.
            now: The time.

        Raises:
            OSError: a worker can't be started.
        """

    def release(self, hosts: frozenset[str], grace: float, now: float) -> float:
        """Give up hosts; their workers may save and leave.

        Args:
            grace: How long their workers may take, in seconds.
            now: The time.

        Returns:
            When the workers that are left there are to be killed.
        """

    def killed_late(self, now: float) -> None:
        """The workers on released hosts did not leave in time, and have just been killed."""

    # -- workers' ends ---------------------------------------------------------------------------------------------

    def reap(self) -> list[WorkerExit]:
        """Workers that have ended since the last call. Each is then passed to `see_end`."""

    def see_end(self, ended: WorkerExit, facts: ExitFacts, now: float) -> Verdict | None:
        """Take in that a worker has ended.

        Returns:
            What this means for the job; None: nothing.
        """

    def see_started(self) -> None:
        """Take in which workers have booted, or run the job's own code. Called after the ends."""

    # -- what is done about it -------------------------------------------------------------------------------------

    def advance(self, now: float, leaving: frozenset[str]) -> bool:
        """Take the next step towards the newest command.

        Args:
            now: The time.
            leaving: Nodes whose agents have reported that they are wanted back.

        Returns:
            Whether the training can go on. False: no worker is left that has its state, and none was taken away.

        Raises:
            OSError: a worker can't be started.
            ImportError: something that the backend needs is missing.
        """

    def begin_stop(self, grace: float) -> None:
        """Ask all workers to save and end; kill them if there is no grace."""

    def advance_stop(self, now: float, kill: bool) -> bool:
        """Continue a stop.

        Args:
            now: The time.
            kill: Whether the grace is over, so that the workers are killed.

        Returns:
            Whether no worker is left.
        """

    def reset(self) -> None:
        """Forget what is commanded after a stop, once no worker is left; kill what workers have left behind.

        The workers of the next command go on from the checkpoint.
        """

    def advance_finish(self, late: bool) -> bool:
        """Have the other workers end after the training is over.

        Args:
            late: Whether their time is over, so that they are killed.

        Returns:
            Whether none is left that trained.
        """

    def close(self) -> None:
        """Kill all processes that are left, and close the backend."""
