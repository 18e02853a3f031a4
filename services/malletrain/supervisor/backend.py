"""What a supervisor asks of a launcher backend: how the workers of a world find each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from malletrain.supervisor.membership import Formation, Slot

SlotEvent = Callable[[Slot], None]


class Backend(Protocol):
    """Speaks to the workers of one job. Called from the supervisor's one thread of decisions."""

    def defaults(self, warm: bool) -> Mapping[str, str]:
        """Environment variables that a worker gets unless its job sets them.

        Args:
            warm: Whether workers boot before they join a world.
        """

    def form(self, formation: Formation) -> Mapping[Slot, Mapping[str, str]]:
        """Open a new world.

        Members that have come back get their places once every newcomer has shown up: they never wait in a world for
        one that dies on its way there.

        Returns:
            The environment of each newcomer.
        """

    def recall(self) -> frozenset[Slot]:
        """Give up the newest world where its members still wait for newcomers.

        Returns:
            Those members, who wait for the next world now; empty where they have got their places.
        """

    def notify(self, coordinator: Slot, stamp: float) -> None:
        """Ask the members, by way of one of them, to come back; never waits, may get lost.

        Args:
            coordinator: The member that passes it on.
            stamp: Grows from one notice to the next.
        """

    def refuse(self, slot: Slot) -> None:
        """Whoever waits for a place at this slot does not get one."""

    def close(self) -> None:
        """Stop serving; nobody gets a place any more."""


class OpenBackend(Protocol):
    """Starts a backend."""

    def __call__(self, on_ready: SlotEvent, on_registered: SlotEvent) -> Backend:
        """Start serving.

        Args:
            on_ready: Called, from any thread, when a worker has come back and waits for its place in the next world.
            on_registered: Called, from any thread, when a worker takes part in its world.
        """
