"""What a supervisor asks of a launcher backend whose workers are all restarted at every change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from malletrain.supervisor.generation_state import Hosts
from malletrain.supervisor.membership import Slot


class RestartingBackend(Protocol):
    """Knows which processes a generation has, and how they find each other. Used from one thread.

    Attributes:
        warm: Whether workers import what they need before they get their place.
    """

    warm: bool

    def defaults(self) -> Mapping[str, str]:
        """Environment variables that a worker gets unless its job sets them."""

    def is_ready(self) -> bool:
        """Whether a generation can be formed."""

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """The slots on these hosts that get a process, in rank order."""

    def occupies(self, world: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The members of a generation that use any of these hosts, wherever their process is."""

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Open the world of a new generation.

        Returns:
            The environment of each of its members.
        """

    def close(self) -> None:
        """Stop serving."""
