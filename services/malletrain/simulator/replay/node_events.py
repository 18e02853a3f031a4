"""Events of a trace: all nodes that join or leave at one instant (BFTrainer, section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from malletrain.scavenger.idle_trace import Trace


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One change of the idle set.

    Attributes:
        time_s: When, in seconds.
        joined: Nodes that join, each with the second since which it is idle, in the trace's order of nodes.
        left: Nodes that leave.
    """

    time_s: float
    joined: tuple[tuple[str, float], ...]
    left: tuple[str, ...]


def node_events(trace: Trace, duration_s: float) -> list[NodeEvent]:
    """The events from second 0 until before `duration_s`. Nodes that are idle at second 0 join then."""
    order = {node: index for index, node in enumerate(trace.nodes)}
    changes: list[tuple[float, bool, int, str, float]] = []
    for fragment in trace.fragments:
        begin = max(0.0, fragment.idle_from_s)
        if fragment.idle_until_s <= begin or begin >= duration_s:
            continue
        changes.append((begin, True, order[fragment.node], fragment.node, fragment.idle_from_s))
        if fragment.idle_until_s < duration_s:
            changes.append((fragment.idle_until_s, False, order[fragment.node], fragment.node, 0.0))
    changes.sort()
    return [_event(time_s, list(group)) for time_s, group in groupby(changes, key=lambda change: change[0])]


def _event(time_s: float, changes: Sequence[tuple[float, bool, int, str, float]]) -> NodeEvent:
    joined = tuple((node, since) for _, joins, _, node, since in changes if joins)
    return NodeEvent(time_s, joined, tuple(node for _, joins, _, node, _ in changes if not joins))


def resource_integral(events: Sequence[NodeEvent], duration_s: float) -> float:
    """Resource integral: node-hours offered until `duration_s` (BFTrainer, Eq. 17)."""
    total, idle, before = 0.0, 0, 0.0
    for event in events:
        total += idle * (event.time_s - before)
        idle += len(event.joined) - len(event.left)
        before = event.time_s
    return (total + idle * (duration_s - before)) / 3600.0
