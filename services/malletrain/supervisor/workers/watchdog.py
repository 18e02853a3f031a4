"""Which workers have shown a sign of being hung for too long. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

WorkerT = TypeVar("WorkerT", bound=Hashable)


@dataclass(frozen=True)
class Watchdog(Generic[WorkerT]):
    """Workers that show a sign of being hung.

    Attributes:
        limit: How long one may show it, in seconds.
        since: When each was first seen with it, in monotonic seconds.
    """

    limit: float
    since: Mapping[WorkerT, float] = field(default_factory=dict)

    def after_look(self, suspects: Set[WorkerT], now: float) -> Watchdog[WorkerT]:
        """The watchdog after a look at the workers. One that does not show the sign any more is forgotten."""
        return Watchdog(self.limit, {worker: self.since.get(worker, now) for worker in suspects})

    def overdue(self, now: float) -> frozenset[WorkerT]:
        """The workers that have shown the sign for too long."""
        return frozenset(worker for worker, since in self.since.items() if now - since >= self.limit)
