"""What a supervisor asks of a launcher backend whose workers stay while others join and leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from malletrain.supervisor.elastic.membership import Formation
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot

SlotEvent = Callable[[Slot], None]


class Backend(Protocol):
    """How the workers of one job find each other. Called from the supervisor's main thread only."""

    def defaults(self, warm: bool) -> Mapping[str, str]:
        """Environment variables that a worker gets unless its job sets them.

        Args:
            warm: Whether workers boot before they join a group.
        """

    def places(self, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment that the workers of a group of these hosts get. Changes nothing.

        Args:
            hosts: Hosts and slots in rank order.
        """

    def form(self, formation: Formation) -> Mapping[Slot, Mapping[str, str]]:
        """Form a new group.

        Members that have come back get their ranks once every new worker has begun to connect. So they never wait for
        one that dies before.

        Returns:
            The environment of each new worker.
        """

    def recall(self) -> frozenset[Slot]:
        """Give up the newest group if its other members still wait for new workers.

        Returns:
            Those members, who now wait for the next group; empty if they have got their ranks.
        """

    def notify(self, coordinator: Slot, stamp: float) -> None:
        """Ask the members to come back to the rendezvous. Never waits; the notice may get lost.

        Args:
            coordinator: The member that passes it on to the others.
            stamp: Grows from one notice to the next.
        """

    def refuse(self, slot: Slot) -> None:
        """Tell a worker that waits at the rendezvous for this slot that it gets no rank."""

    def close(self) -> None:
        """Stop serving; no worker gets a rank any more."""


class OpenBackend(Protocol):
    """Starts a backend."""

    def __call__(self, on_ready: SlotEvent, on_registered: SlotEvent) -> Backend:
        """Start serving.

        Args:
            on_ready: Called, from any thread, when a worker has come back and waits for its rank in the next group.
            on_registered: Called, from any thread, when a worker takes part in its group.
        """
