"""How long workers that do nothing are borne with. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from malletrain.supervisor.membership import Slot


@dataclass(frozen=True)
class Watchdog:
    """Workers that show one sign of being hung.

    Attributes:
        limit: How long one may show it, in seconds.
        since: When each was first seen with it, in monotonic seconds.
    """

    limit: float
    since: Mapping[Slot, float] = field(default_factory=dict)

    def seen(self, suspects: Set[Slot], now: float) -> Watchdog:
        """The watchdog after a look: who is no longer suspect is forgotten."""
        return Watchdog(self.limit, {slot: self.since.get(slot, now) for slot in suspects})

    def overdue(self, now: float) -> frozenset[Slot]:
        """Those that have shown it for too long."""
        return frozenset(slot for slot, since in self.since.items() if now - since >= self.limit)
