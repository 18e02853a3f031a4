"""A worker, wherever its process is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from malletrain.supervisor.membership import Slot


class Worker(Protocol):
    """Started warm, then told to go. See `malletrain.supervisor.processes.WorkerProcess`.

    Attributes:
        slot: Its place.
        here: Whether its process is one of this machine.
        going: Whether it has been told to go.
        killed: Whether it was the supervisor that killed it.
        hung: Whether that was because it hung.
    """

    slot: Slot
    here: bool
    going: bool
    killed: bool
    hung: bool

    @property
    def pid(self) -> int:
        """Process id on its node; 0 before that is known."""

    @property
    def started(self) -> bool:
        """Whether the job's own code runs."""

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""

    def is_stopped(self) -> bool:
        """Whether it has been stopped by a signal."""

    def is_warm(self) -> bool:
        """Whether it waits for its start; brings `started` up to date."""

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the trainer start with these variables on top of its environment."""

    def terminate(self) -> None:
        """Ask the trainer to commit, save and end."""

    def kill(self) -> None:
        """Kill the process and its group."""

    def close(self) -> None:
        """Let go of what belongs to it."""
