"""A worker, whether its process is on this machine or behind a node's agent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from malletrain.common import environment as env
from malletrain.common.cgroups import Cgroup
from malletrain.common.oom_kills import OomKills, may_be_for_memory
from malletrain.common.standby.manager import StandbyManager
from malletrain.common.worker_process import WorkerProcess
from malletrain.supervisor.workers.slot import Slot


class Worker(Protocol):
    """A worker process. It boots at once, and runs the job's own code when `go` is called.

    Attributes:
        here: Whether its process is on this machine.
        going: Whether `go` has been called.
        killed: Whether `kill` has been called.
        hung: Whether it was killed because it hung.
        place: Variables of the place that `prepare` has told; None before.
    """

    slot: Slot
    here: bool
    going: bool
    killed: bool
    hung: bool
    place: Mapping[str, str] | None

    @property
    def lost(self) -> bool:
        """Whether it has ended with the agent of its node, or could not be started there."""

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed processes on its node for want of memory when it was killed."""

    @property
    def of_release_0_1(self) -> bool:
        """Whether an agent of release 0.1 has started it, so that its trainer may be of that release, too."""

    @property
    def pid(self) -> int:
        """Process id on its node; 0 if it is not known yet."""

    @property
    def started(self) -> bool:
        """Whether the job's own code runs."""

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""

    def is_warm(self) -> bool:
        """Whether it has booted. Updates `started`."""

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Have it get ready for a place that is not certain yet. Call it once, when it has booted."""

    def is_prepared(self) -> bool:
        """Whether it has got ready for its place."""

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""

    def terminate(self, grace: float) -> None:
        """Send SIGTERM: the worker may save its state, and then ends.

        Args:
            grace: When it is killed otherwise, in seconds from now.
        """

    def kill(self) -> None:
        """Kill its process group. Also works after the process itself has ended. Its sidecar goes on."""

    def has_session(self) -> bool:
        """Whether any process of its session still runs, e.g. its sidecar. Call after the process itself has ended."""

    def kill_session(self) -> None:
        """Kill what is left of its session. Call after the process itself has ended."""

    def close(self) -> None:
        """Release its resources here. Call after it has ended."""


class LocalWorker(WorkerProcess):
    """A worker on this machine; see `Worker`.

    Attributes:
        oom_kills: Tells whether the kernel has killed processes here for want of memory; None: not known.
    """

    def __init__(
        self,
        slot: Slot,
        command: Iterable[str],
        folder: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        warm: bool = True,
        standby: StandbyManager | None = None,
        group: Cgroup | None = None,
        handover: int = -1,
    ) -> None:
        """Start the process; see `WorkerProcess`.

        Raises:
            OSError: the interpreter or the folder is missing.
        """
        self.slot = slot
        self.here = True
        self.hung = False
        self.lost = False
        self.of_release_0_1 = False
        self.oom_kills: OomKills | None = None
        super().__init__(command, folder, environment, log, warm=warm, standby=standby, group=group, handover=handover)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed processes here for want of memory when it was killed."""
        if self.oom_kills is None or self.killed:
            return False
        code = self.poll()
        return code is not None and may_be_for_memory(code) and self.oom_kills.recent(time.monotonic())


def lineage(number: int, workers: Iterable[Worker]) -> Mapping[str, str]:
    """Variables by which workers know that they have the model from the same group or generation.

    They get none if a trainer among them may be of release 0.1: those of this version train as it does then.

    Args:
        number: Number of the group or generation that has begun with what is on disk.
    """
    return {} if any(worker.of_release_0_1 for worker in workers) else {env.LINEAGE: str(number)}
