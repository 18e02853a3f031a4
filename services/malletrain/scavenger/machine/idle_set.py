"""Which nodes count as idle, by debounce and reclaims, and the events that follow. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType

from malletrain.runtime.errors import InvariantError
from malletrain.scavenger.machine.drains import DrainSet
from malletrain.scavenger.machine.gpu_units import units_of


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
        left: Names of the nodes that left, in the source's order.
    """

    joined: tuple[IdleNode, ...] = ()
    left: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.joined or self.left)


@dataclass
class IdleSet:
    """The nodes that may be used, from what a source calls idle.

    A node counts once it has been idle for `debounce_seconds`, so that nodes that are idle only between two jobs are
    left out (BFTrainer, section 2.1). It stops counting at once when the source no longer calls it idle, when the
    source says that its fragment began later than was known (it was used in between), or when it is reclaimed.

    Times are seconds since the epoch. Each decision uses the whole newest observation. An observation that was missed
    therefore does no lasting harm, and neither does a `now` that goes back a little.

    Attributes:
        debounce_seconds: How long a node must be idle before it counts, at least 0.
        order: Names in the order in which `members` lists them. Other names follow in order of appearance.
        reclaimed_until: Reclaims from before a restart: until when each node stays out.
        drains: Nodes that are out, whatever the source calls them.
    """

    debounce_seconds: float
    order: InitVar[Iterable[str]] = ()
    reclaimed_until: InitVar[Mapping[str, float]] = MappingProxyType({})
    drains: DrainSet = field(default_factory=DrainSet)
    _rank: dict[str, int] = field(init=False)
    _idle: dict[str, float] = field(init=False, default_factory=dict)
    _members: dict[str, float] = field(init=False, default_factory=dict)
    # Those that are idle and do not count: there are few, while thousands may count.
    _waiting: set[str] = field(init=False, default_factory=set)
    _cooldowns: dict[str, float] = field(init=False)
    _announced: set[str] = field(init=False, default_factory=set)

    def __post_init__(self, order: Iterable[str], reclaimed_until: Mapping[str, float]) -> None:
        self._rank = {name: index for index, name in enumerate(order)}
        self._cooldowns = dict(reclaimed_until)

    def observe(self, now: float, idle: Mapping[str, float]) -> IdleEvent:
        """Take over what a source observed: all idle nodes, and since when each is idle."""
        gone = [name for name in self._idle if name not in idle]
        changed = [name for name, since in idle.items() if self._idle.get(name) != since]
        self._idle = dict(idle)
        for name in changed:
            self._rank.setdefault(name, len(self._rank))
            if name not in self._members:
                self._waiting.add(name)
        for name in gone:
            self._waiting.discard(name)
        return self._settle(now, (*gone, *changed))

    def reclaim(self, now: float, nodes: Iterable[str], cooldown_seconds: float) -> IdleEvent:
        """Take nodes out at once and keep them out for `cooldown_seconds`, even if the source calls them idle.

        A cooldown is never shortened.
        """
        reclaimed = tuple(dict.fromkeys(nodes))
        for name in reclaimed:
            self._cooldowns[name] = max(self._cooldowns.get(name, now), now + cooldown_seconds)
        return self._settle(now, reclaimed)

    def lift(self, now: float, nodes: Iterable[str]) -> IdleEvent:
        """End the cooldowns of nodes: they may join as soon as they have been idle for long enough."""
        lifted = tuple(nodes)
        for name in lifted:
            self._cooldowns.pop(name, None)
        return self._settle(now, lifted)

    def drain(self, now: float, drains: DrainSet) -> IdleEvent:
        """Keep out these nodes, and no others that were drained before, whatever the source calls them."""
        self.drains = drains
        return self._settle(now, tuple(self._members))

    def tick(self, now: float) -> IdleEvent:
        """Let nodes join whose debounce and cooldown are over."""
        return self._settle(now)

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds: as much of each debounce and cooldown is left as before."""
        self._idle, self._members, self._cooldowns = (
            {name: time + seconds for name, time in times.items()}
            for times in (self._idle, self._members, self._cooldowns)
        )

    def next_deadline(self) -> float | None:
        """When the next node joins unless something else happens; may be in the past. None if no node will join."""
        waiting = (name for name in self._waiting if name not in self.drains)
        return min((self._due(name) for name in waiting), default=None)

    def members(self) -> tuple[IdleNode, ...]:
        """The nodes that count as idle, in order."""
        return self._in_order(self._members)

    def since(self) -> Mapping[str, float]:
        """The nodes that count as idle, in no order, and when the fragment of each began; it changes with them."""
        return self._members

    def units_of(self, names: Iterable[str]) -> list[str]:
        """Nodes by the names that have appeared: one that is used GPU by GPU is its GPUs."""
        return units_of(names, self._rank)

    def rank(self, name: str) -> int | None:
        """Position of a node in the order; None for a name that never appeared."""
        return self._rank.get(name)

    def was_announced(self, name: str) -> bool:
        """Whether the node has counted as idle at any time since the start of the service."""
        return name in self._announced

    def announced(self) -> list[str]:
        """The nodes that have counted as idle at any time since the start of the service, by name."""
        return sorted(self._announced)

    def cooldowns(self) -> dict[str, float]:
        """When reclaimed nodes may be offered again."""
        return dict(self._cooldowns)

    def check(self) -> None:
        """Check that the parts agree with each other.

        Raises:
            InvariantError: they do not.
        """
        for name in self._members:
            if name in self._waiting or name not in self._idle or name in self.drains:
                raise InvariantError(f"node {name} counts as idle although it waits, is in use or is drained")
        if missing := self._idle.keys() - self._members.keys() - self._waiting:
            raise InvariantError(f"idle nodes neither count nor wait: {', '.join(sorted(missing))}")
        if unknown := self._members.keys() - self._announced:
            raise InvariantError(f"nodes count as idle that were never announced: {', '.join(sorted(unknown))}")

    def _due(self, name: str) -> float:
        return max(self._idle[name] + self.debounce_seconds, self._cooldowns.get(name, -math.inf))

    def _settle(self, now: float, touched: Sequence[str] = ()) -> IdleEvent:
        """Make members of those that are due, and no longer of those that have left.

        Args:
            now: Seconds since the epoch.
            touched: The nodes of which anything has changed, each once; of the others none has left.
        """
        # A cooldown that is over is removed, so that it does not begin again when `now` goes back.
        self._cooldowns = {name: until for name, until in self._cooldowns.items() if until > now}
        left = [name for name in touched if name in self._members and self._has_left(name, self._members[name])]
        left.sort(key=self._rank.__getitem__)
        for name in left:
            del self._members[name]
        self._members.update((name, self._idle[name]) for name in touched if name in self._members)
        joined = {
            name: self._idle[name] for name in self._waiting if name not in self.drains and self._due(name) <= now
        }
        for name in joined:
            self._waiting.remove(name)
        # A node that left and is due again joins with the next event: an event has no order in itself.
        self._waiting.update(name for name in left if name in self._idle)
        self._members.update(joined)
        self._announced.update(joined)
        return IdleEvent(self._in_order(joined), tuple(left))

    def _has_left(self, name: str, since: float) -> bool:
        out = name not in self._idle or name in self._cooldowns or name in self.drains
        # Its fragment began later than was known: it was in use between two observations, and its processes are gone.
        return out or self._idle[name] > since

    def _in_order(self, nodes: Mapping[str, float]) -> tuple[IdleNode, ...]:
        return tuple(IdleNode(name, nodes[name]) for name in sorted(nodes, key=self._rank.__getitem__))
