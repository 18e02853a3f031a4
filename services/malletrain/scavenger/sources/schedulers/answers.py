"""What the scheduler's answers amount to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.runtime.errors import MalleTrainError
from malletrain.scavenger.sources.base import NodeFacts

_SHOWN = 80


class UnreadableError(MalleTrainError):
    """An answer can't be trusted: it is cut short, or not what was asked for. The picture before it stays."""

    def __init__(self, expected: str, got: str) -> None:
        shown = got if len(got) <= _SHOWN else f"{got[: _SHOWN - 3]}..."
        super().__init__(f"expected {expected}, got {shown!r}")


@dataclass(frozen=True)
class NodeStates:
    """The answer to "which nodes are idle?".

    Attributes:
        idle: Nodes on which nothing runs and which may be used at once.
        known: All nodes that were named.
        facts: What is known of them, where the same answer tells.
        reserved_by: Idle nodes on which reservations lie, with their names. Until it is known when each of them
            begins, such a node is not idle.
        units: Host of each unit that other answers name, where that differs (PBS: virtual nodes).
    """

    idle: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    reserved_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedStart:
    """A pending job that the scheduler has planned: its identifier, when (seconds since the epoch), and where."""

    job: str
    start: float
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Reservation:
    """A time in which nodes are somebody else's, in seconds since the epoch."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Horizon:
    """What the scheduler says of the future: planned starts and reservations, as far as they are known.

    Attributes:
        planned: Planned starts of pending jobs.
        reservations: Reservations that are or will be.
        reservations_known: Whether the second list is what the scheduler says, and not just nothing yet.
    """

    planned: tuple[PlannedStart, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reservations_known: bool = True


@dataclass(frozen=True)
class Idleness:
    """Nodes that may be used now, and until when where the scheduler says (seconds since the epoch)."""

    idle: frozenset[str]
    ends: Mapping[str, float]


def combine(states: NodeStates, horizon: Horizon, now: float, own_jobs: frozenset[str] = frozenset()) -> Idleness:
    """The nodes that may be used, with the earliest known end of each one's idleness.

    Args:
        states: Who is idle.
        horizon: What is known to come.
        now: Seconds since the epoch.
        own_jobs: Jobs of ours: their planned starts end nobody's idleness.
    """
    ends: dict[str, float] = {}
    for planned in horizon.planned:
        if planned.job not in own_jobs:
            _cap(ends, states, planned.nodes, max(planned.start, now))
    taken: set[str] = set()
    starts: dict[str, float] = {}
    for reservation in horizon.reservations:
        starts[reservation.name] = reservation.start
        if reservation.start <= now < reservation.end:
            taken.update(states.units.get(node, node) for node in reservation.nodes)
        elif now < reservation.start:
            _cap(ends, states, reservation.nodes, reservation.start)
    for node, names in states.reserved_by.items():
        coming = [starts.get(name, now) for name in names] if horizon.reservations_known else [now]
        if min(coming, default=now) <= now:
            taken.add(node)
        else:
            ends[node] = min(ends.get(node, coming[0]), *coming)
    idle = states.idle - taken
    return Idleness(idle, {node: end for node, end in ends.items() if node in idle})


def _cap(ends: dict[str, float], states: NodeStates, nodes: tuple[str, ...], end: float) -> None:
    for unit in nodes:
        node = states.units.get(unit, unit)
        ends[node] = min(ends.get(node, end), end)
