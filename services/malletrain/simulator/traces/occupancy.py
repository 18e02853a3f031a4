"""From what nodes are busy with to what they are idle for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace

Interval = tuple[float, float]
"""Its first second, and the first that is no longer in it."""


@dataclass(frozen=True)
class Allocation:
    """A job's hold on some nodes.

    Attributes:
        place: `file:line` that tells of it.
        nodes: Names.
        from_s: First second.
        until_s: First second after it; None while it goes on.
    """

    place: str
    nodes: tuple[str, ...]
    from_s: float
    until_s: float | None


@dataclass(frozen=True)
class Machine:
    """The nodes of a system.

    Attributes:
        nodes: Names in order, each once.
        up_from: First second up of those nodes for which it is known; infinite for nodes that never were.
        place: Where the list comes from.
    """

    nodes: tuple[str, ...]
    up_from: Mapping[str, float]
    place: str


def machine_of(allocations: Iterable[Allocation]) -> Machine:
    """The nodes that appear in jobs, sorted by name: all that a log without a list of nodes can tell."""
    return Machine(tuple(sorted({name for entry in allocations for name in entry.nodes})), {}, "the log")


def idle_trace(
    allocations: Sequence[Allocation],
    machine: Machine,
    window: Interval,
    outages: Sequence[Allocation] = (),
    origin: str | None = None,
) -> Trace:
    """A node is idle while it is up and no job holds it.

    Args:
        allocations: Jobs, in any order; those on one node may overlap.
        machine: All nodes.
        window: First second and end of the trace, in the same seconds as the allocations; the first becomes 0.
        outages: Times in which nodes were not to be had, in the form of jobs. Nodes that the machine lacks are skipped.
        origin: The window's first second on the calendar.

    Raises:
        InvalidInputError: a job is on a node that the machine lacks, or the window is empty.
    """
    begin, end = window
    if not begin < end:
        raise InvalidInputError("window", "an end after its beginning", f"{begin:.0f} to {end:.0f}")
    held: dict[str, list[Interval]] = {name: [] for name in machine.nodes}
    for entry in allocations:
        for name in entry.nodes:
            if name not in held:
                raise InvalidInputError(entry.place, f"nodes of {machine.place}", name)
    for entry in (*allocations, *outages):
        until = end if entry.until_s is None else entry.until_s
        for name in entry.nodes:
            if name in held:
                held[name].append((entry.from_s, until))
    found = [
        Fragment(name, first - begin, last - begin)
        for name, busy in held.items()
        for first, last in complement(busy, (max(begin, machine.up_from.get(name, begin)), end))
    ]
    # A stable sort: nodes keep their order at one instant.
    found.sort(key=lambda fragment: fragment.idle_from_s)
    return Trace(tuple(found), machine.nodes, end - begin, origin=origin)


def complement(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """What of the window lies in none of the intervals; they may overlap and be in any order."""
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
