"""What a supervisor asks of a launcher backend whose workers are all restarted at every change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot


class RestartingBackend(Protocol):
    """The processes of a generation, and how they find each other. Called from the supervisor's main thread only.

    Attributes:
        warm: Whether workers import what they need before they get their rank.
    """

    warm: bool

    def defaults(self) -> Mapping[str, str]:
        """Environment variables that a worker gets unless its job sets them."""

    def is_ready(self) -> bool:
        """Whether a generation can be formed."""

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """The slots on these hosts that get a process, in rank order."""

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The members of a generation that use any of these hosts, wherever their process is.

        Args:
            trained: Hosts and slots of the generation.
            hosts: The hosts in question.
        """

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment that the members of a generation get, before it is formed; it is the same if it is.

        Returns:
            Empty if the workers make no use of it before.
        """

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Form a new generation.

        Returns:
            The environment of each of its members.
        """

    def has_met(self) -> bool:
        """Whether members of the present generation have begun to look for each other, or need not."""

    def close(self) -> None:
        """Stop serving."""
