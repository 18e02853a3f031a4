"""Which nodes count as idle: debounce, reclaims, and the events that follow. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A node that counts as idle.

    Attributes:
        name: Name of the node.
        idle_since: When its present fragment began, in seconds since the epoch.
    """

    name: str
    idle_since: float


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """One change of the idle set; no node is in both parts.

    Attributes:
        joined: Nodes that joined, in the source's order.
        left: Names of the nodes that left.
    """

    joined: tuple[IdleNode, ...] = ()
    left: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.joined or self.left)


class IdleSet:
    """The nodes that may be used, from what a source calls idle.

    A node counts once it has been idle for `debounce_seconds`: what is idle only between two jobs is left out
    (BFTrainer, section 2.1). It ceases to count at once when the source no longer calls it idle, when the source says
    that its fragment began later than was known (it was in use in between), or when it is reclaimed.

    Times are seconds since the epoch. Decisions rest on the whole present picture, so that a missed observation does
    no lasting harm, and a `now` that goes back a little does none at all.
    """

    def __init__(
        self, debounce_seconds: float, order: Iterable[str] = (), holds: Mapping[str, float] | None = None
    ) -> None:
        """Begin without nodes.

        Args:
            debounce_seconds: How long a node must be idle before it counts, at least 0.
            order: Names in the order in which `members` lists them; others follow in the order in which they come.
            holds: Reclaims of an earlier life: until when each node stays out.
        """
        self._debounce = debounce_seconds
        self._rank = {name: index for index, name in enumerate(order)}
        self._idle: dict[str, float] = {}
        self._members: dict[str, float] = {}
        self._held: dict[str, float] = dict(holds or {})
        self._announced: set[str] = set()

    def observe(self, now: float, idle: Mapping[str, float]) -> IdleEvent:
        """Take over the whole picture of a source: each idle node with the time since when."""
        for name in idle:
            self._rank.setdefault(name, len(self._rank))
        self._idle = dict(idle)
        return self._settle(now)

    def reclaim(self, now: float, nodes: Iterable[str], hold_seconds: float) -> IdleEvent:
        """Take nodes out at once, and keep them out for `hold_seconds` whatever the source says.

        An earlier, longer hold stays.
        """
        for name in nodes:
            self._held[name] = max(self._held.get(name, now), now + hold_seconds)
        return self._settle(now)

    def tick(self, now: float) -> IdleEvent:
        """Let time pass: nodes whose debounce or hold is over join."""
        return self._settle(now)

    def next_deadline(self) -> float | None:
        """When the next node will join if nothing else happens, perhaps at once; None where none will."""
        return min((self._due(name) for name in self._idle if name not in self._members), default=None)

    def members(self) -> tuple[IdleNode, ...]:
        """The nodes that count as idle, in order."""
        return self._in_order(self._members)

    def rank(self, name: str) -> int | None:
        """The place of a node in the order; None for a name that has never come."""
        return self._rank.get(name)

    def was_announced(self, name: str) -> bool:
        """Whether the node has counted as idle at any time in this life."""
        return name in self._announced

    def holds(self) -> dict[str, float]:
        """Until when reclaimed nodes stay out."""
        return dict(self._held)

    def _due(self, name: str) -> float:
        return max(self._idle[name] + self._debounce, self._held.get(name, -math.inf))

    def _settle(self, now: float) -> IdleEvent:
        # A hold that is over is forgotten, so that it can't come back when `now` does.
        self._held = {name: until for name, until in self._held.items() if until > now}
        left = [name for name, since in self._members.items() if self._has_left(name, since)]
        for name in left:
            del self._members[name]
        # A node that left in between and is due again comes back with the next event: an event has no order.
        joined = {
            name: since
            for name, since in self._idle.items()
            if name not in self._members and name not in left and self._due(name) <= now
        }
        self._members = {name: self._idle[name] for name in self._members} | joined
        self._announced.update(joined)
        return IdleEvent(self._in_order(joined), tuple(left))

    def _has_left(self, name: str, since: float) -> bool:
        return name not in self._idle or name in self._held or self._idle[name] > since

    def _in_order(self, nodes: Mapping[str, float]) -> tuple[IdleNode, ...]:
        return tuple(IdleNode(name, nodes[name]) for name in sorted(nodes, key=self._rank.__getitem__))
