"""Which nodes are available, from a scheduler's parsed answers. Pure. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.runtime.errors import MalleTrainError
from malletrain.scavenger.machine.observations import NodeFacts

_SHOWN = 80


class UnreadableError(MalleTrainError):
    """An answer was cut short, or is not what was asked for. It is dropped as a whole; the answer before stays."""

    def __init__(self, expected: str, got: str) -> None:
        excerpt = got if len(got) <= _SHOWN else f"{got[: _SHOWN - 3]}..."
        super().__init__(f"expected {expected}, got {excerpt!r}")


@dataclass(frozen=True)
class NodeStates:
    """Which nodes the scheduler calls idle.

    Attributes:
        idle: Nodes on which nothing runs and which may be used at once.
        known: All nodes in the answer.
        facts: What nodes are, where the same answer tells.
        reserved_by: Idle nodes with reservations, and the names of these. Until the start of each is known, such a node
            is not available.
        offline: Nodes that an operator has taken out of use, whatever runs there.
        units: Host of each unit that other answers name, where the two differ (PBS: virtual nodes).
        parts: Units of each node that other answers name, where a node is used by parts (single GPUs).
        unclear: Nodes in a state that is not known, and what was said of it. They are not idle.
    """

    idle: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    reserved_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    offline: frozenset[str] = frozenset()
    units: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unclear: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedStart:
    """A pending job for which the scheduler has planned a start: its identifier, when, and on which nodes."""

    job: str
    start: float
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NodeReservation:
    """A time in which nodes are reserved for others."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Forecast:
    """Main jobs and reservations that the scheduler has planned.

    Attributes:
        planned: Planned starts of pending jobs.
        reservations: Present and future reservations.
        reservations_known: Whether the scheduler has told its reservations; False: there may be some.
    """

    planned: tuple[PlannedStart, ...] = ()
    reservations: tuple[NodeReservation, ...] = ()
    reservations_known: bool = True


@dataclass(frozen=True)
class Availability:
    """What the scheduler says of nodes. Times are seconds since the epoch.

    Attributes:
        idle: Nodes that may be used now.
        ends: When their idleness ends at the latest, where that is known.
        reserved: When the present or next reservation of nodes starts, idle or not; never before now.
    """

    idle: frozenset[str]
    ends: Mapping[str, float]
    reserved: Mapping[str, float] = field(default_factory=dict)


def available_nodes(
    states: NodeStates, forecast: Forecast, now: float, own_jobs: frozenset[str] = frozenset()
) -> Availability:
    """The nodes that may be used, and the earliest known end of each one's idleness.

    Args:
        states: Which nodes are idle.
        forecast: Planned starts and reservations.
        now: The present.
        own_jobs: Our placeholders. Their planned starts do not end the idleness of a node.
    """
    ends: dict[str, float] = {}
    for planned in forecast.planned:
        if planned.job not in own_jobs:
            _limit(ends, states, planned.nodes, max(planned.start, now))
    reservations: dict[str, float] = {}
    starts: dict[str, float] = {}
    for reservation in forecast.reservations:
        starts[reservation.name] = min(starts.get(reservation.name, reservation.start), reservation.start)
        if now < reservation.end:
            _limit(reservations, states, reservation.nodes, max(reservation.start, now))
    reserved = {node for node, start in reservations.items() if start <= now}
    for node, start in reservations.items():
        ends[node] = min(ends.get(node, start), start)
    for node, names in states.reserved_by.items():
        coming = [starts.get(name, now) for name in names] if forecast.reservations_known else [now]
        if min(coming, default=now) <= now:
            reserved.add(node)
        else:
            ends[node] = min(ends.get(node, coming[0]), *coming)
    idle = states.idle - reserved
    return Availability(idle, {node: end for node, end in ends.items() if node in idle}, reservations)


def _limit(ends: dict[str, float], states: NodeStates, nodes: tuple[str, ...], end: float) -> None:
    for name in nodes:
        host = states.units.get(name, name)
        for node in states.parts.get(host, (host,)):
            ends[node] = min(ends.get(node, end), end)
