"""From the periods in which nodes are busy to those in which they are idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace

Interval = tuple[float, float]
"""First second, and first second after the end."""


@dataclass(frozen=True)
class BusyPeriod:
    """A period in which some nodes are busy: a job, or an outage.

    Attributes:
        place: `file:line` where it is recorded.
        nodes: Names of the nodes.
        from_s: First second.
        until_s: First second after the end; None if it has not ended.
    """

    place: str
    nodes: tuple[str, ...]
    from_s: float
    until_s: float | None


@dataclass(frozen=True)
class Machine:
    """The nodes of a system.

    Attributes:
        nodes: Names in order, without duplicates.
        up_from: First second in which a node is up, for nodes for which it is known; infinity if it never is.
        place: Where the list comes from, for errors.
    """

    nodes: tuple[str, ...]
    up_from: Mapping[str, float]
    place: str


def machine_of(busy_periods: Iterable[BusyPeriod]) -> Machine:
    """The nodes that jobs used, sorted by name: for logs without a list of nodes."""
    return Machine(tuple(sorted({name for entry in busy_periods for name in entry.nodes})), {}, "the log")


def idle_trace(
    busy_periods: Sequence[BusyPeriod],
    machine: Machine,
    window: Interval,
    outages: Sequence[BusyPeriod] = (),
    origin: str | None = None,
) -> Trace:
    """The trace of the nodes that are up and not busy.

    Args:
        busy_periods: Jobs in any order; jobs on one node may overlap.
        machine: All nodes.
        window: First second and end of the trace, in the same seconds as the busy periods; the first becomes 0.
        outages: Periods in which nodes were down. Nodes that are not part of the machine are ignored.
        origin: First second of the window on the calendar.

    Raises:
        InvalidInputError: a job is on a node that is not part of the machine, or the window is empty.
    """
    begin, end = window
    if not begin < end:
        raise InvalidInputError("window", "an end after its beginning", f"{begin:.0f} to {end:.0f}")
    held: dict[str, list[Interval]] = {name: [] for name in machine.nodes}
    for entry in busy_periods:
        for name in entry.nodes:
            if name not in held:
                raise InvalidInputError(entry.place, f"nodes of {machine.place}", name)
    for entry in (*busy_periods, *outages):
        until = end if entry.until_s is None else entry.until_s
        for name in entry.nodes:
            if name in held:
                held[name].append((entry.from_s, until))
    found = [
        Fragment(name, first - begin, last - begin)
        for name, busy in held.items()
        for first, last in complement(busy, (max(begin, machine.up_from.get(name, begin)), end))
    ]
    # The sort is stable: fragments of one instant keep the order of their nodes.
    found.sort(key=lambda fragment: fragment.idle_from_s)
    return Trace(tuple(found), machine.nodes, end - begin, origin=origin)


def complement(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of the window that no interval covers. The intervals may overlap and be in any order."""
    time, end = window
    free: list[Interval] = []
    for first, last in sorted(intervals):
        if first >= end:
            break
        if first > time:
            free.append((time, first))
        time = max(time, last)
    if time < end:
        free.append((time, end))
    return free
