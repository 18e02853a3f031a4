"""A worker, whether its process is on this machine or behind a node's agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from malletrain.common.standby.keeper import StandbyKeeper
from malletrain.common.worker_process import WorkerProcess
from malletrain.supervisor.membership import Slot


class Worker(Protocol):
    """A worker process. It boots at once, and runs the job's own code when `go` is called.

    Attributes:
        slot: Its slot.
        here: Whether its process is on this machine.
        going: Whether `go` has been called.
        killed: Whether `kill` has been called.
        hung: Whether it was killed because it hung.
    """

    slot: Slot
    here: bool
    going: bool
    killed: bool
    hung: bool

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

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""

    def terminate(self) -> None:
        """Send SIGTERM: the worker may save its state, and then ends."""

    def kill(self) -> None:
        """Kill its process group. Also works after the process itself has ended."""

    def has_group(self) -> bool:
        """Whether any process of its process group still runs. Call after the process itself has ended."""

    def close(self) -> None:
        """Release its resources here. Call after it has ended."""


class LocalWorker(WorkerProcess):
    """A worker on this machine; see `Worker`."""

    def __init__(
        self,
        slot: Slot,
        command: Iterable[str],
        folder: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        warm: bool = True,
        standby: StandbyKeeper | None = None,
    ) -> None:
        """Start the process; see `WorkerProcess`.

        Raises:
            OSError: the interpreter or the folder is missing.
        """
        self.slot = slot
        self.here = True
        self.hung = False
        super().__init__(command, folder, environment, log, warm=warm, standby=standby)
