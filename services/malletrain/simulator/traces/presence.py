"""From when until when each node of a log counts, and when it is idle."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.traces.columns import Columns, Seconds
from malletrain.simulator.traces.log_window import DAY_S, Interval
from malletrain.simulator.traces.runs import RunTable
from malletrain.simulator.traces.system_nodes import SystemNodes

_LONG_SHARE = 0.1
_MAX_LONG_S = 7 * DAY_S


@dataclass(frozen=True)
class NodeCount:
    """Some nodes, and the time that they would add to what is idle.

    Attributes:
        nodes: How many.
        node_s: Node-seconds within the window.
        example: The one with the most of them; empty if there are none.
        time_s: What is told of it: when its first job began, when its last job ended, or when it was booted.
    """

    nodes: int = 0
    node_s: float = 0.0
    example: str = ""
    time_s: float = 0.0


@dataclass(frozen=True)
class Presence:
    """From when until when each node counts.

    Attributes:
        present: From when until when each is part of the system; two arrays of shape (nodes,), within the window.
        up_from: From when on each can be idle; shape (nodes,). A node that is not yet up counts, but is not idle.
        late: Nodes that are left out until their first job.
        gone: Nodes that count to the end, though they have no job for long before it.
        booted: Nodes that are not idle before their last boot, since no job was there before.
    """

    present: tuple[Seconds, Seconds]
    up_from: Seconds
    late: NodeCount
    gone: NodeCount
    booted: NodeCount


def presence_of(table: RunTable, nodes: SystemNodes, window: Interval) -> Presence:
    """When the nodes are part of the system.

    Without a list of nodes nothing is known of a node before its first job. Where that is long after the window begins
    (a day, and a tenth of the window or a week), the node counts from its first job on only. A list says that nodes
    were there, all the time or from when until when. A boot says that a node was not up before, unless a job was.

    Args:
        table: Jobs, with the nodes of the list in its order.
        nodes: The list, or the nodes of the log.
        window: First second and end of the trace.
    """
    begin, end = window
    count = len(nodes.names)
    first_job, last_job = _first_and_last(table, count, end)
    long_s = max(DAY_S, min(_LONG_SHARE * (end - begin), _MAX_LONG_S))
    from_s, until_s = np.full(count, begin), np.full(count, end)
    late = np.zeros(count, np.bool_)
    if not nodes.listed:
        late = first_job - begin >= long_s
        from_s[late] = np.minimum(first_job[late], end)
    for index, name in enumerate(nodes.names):
        if name in nodes.present_s:
            from_s[index], until_s[index] = np.clip(nodes.present_s[name], begin, end)
    gone = (until_s - np.maximum(last_job, from_s) >= long_s) & np.isfinite(last_job)
    up_from = np.array([nodes.booted_s.get(name, -np.inf) for name in nodes.names])
    up_from[first_job < up_from] = -np.inf
    down_s = np.clip(np.minimum(up_from, until_s) - from_s, 0.0, None)
    return Presence(
        (from_s, until_s),
        up_from,
        _count(nodes, late, from_s - begin, first_job),
        _count(nodes, gone, until_s - np.maximum(last_job, from_s), last_job),
        _count(nodes, down_s > 0, down_s, up_from),
    )


def _first_and_last(table: RunTable, count: int, end: float) -> tuple[Seconds, Seconds]:
    """Start of the first and end of the last job of each node; infinity and minus infinity without any."""
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    until_s = np.where(np.isnan(table.until_s), end, table.until_s)
    np.minimum.at(first, table.node, table.from_s[table.run])
    np.maximum.at(last, table.node, until_s[table.run])
    return first, last


def _count(nodes: SystemNodes, chosen: NDArray[np.bool_], s: Seconds, at: Seconds) -> NodeCount:
    if not chosen.any():
        return NodeCount()
    most = int(np.argmax(np.where(chosen, s, -1.0)))
    return NodeCount(int(chosen.sum()), float(s[chosen].sum()), nodes.names[most], float(at[most]))


EDGE = 0.01
"""Share of a window that is its begin, or its end."""


def idle_columns(tables: Iterable[RunTable], counted: tuple[Seconds, Seconds], window: Interval) -> Columns:
    """When the nodes are there and not held, in seconds after the window's begin.

    Args:
        tables: What holds nodes: jobs, outages. All have the same nodes. Runs may overlap and be in any order; those
            without an end go on.
        counted: From when until when each node counts at all, of shape (nodes,) each, in the seconds of the tables.
        window: First second and end of the trace.

    Returns:
        Idle fragments by node, then by time.
    """
    begin, end = window
    parts = list(tables)
    run_offsets = np.cumsum([0, *(table.size for table in parts)])
    from_s = np.concatenate([table.from_s for table in parts])
    until_s = np.concatenate([table.until_s for table in parts])
    node = np.concatenate([table.node for table in parts])
    run = np.concatenate([table.run + offset for table, offset in zip(parts, run_offsets, strict=False)])
    until_s = np.where(np.isnan(until_s), end, until_s)
    within = (from_s < end) & (until_s > begin)
    held = within[run]
    node, run = node[held], run[held]
    order = np.lexsort((from_s[run], node))
    node, first, last = node[order], from_s[run[order]], until_s[run[order]]
    counted_from, counted_until = np.maximum(counted[0], begin), np.minimum(counted[1], end)
    bounds = np.searchsorted(node, np.arange(counted_from.size + 1))
    nodes, begins, ends = [], [], []
    for index, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
        free_from, free_until = _complement(first[low:high], last[low:high], counted_from[index], counted_until[index])
        nodes.append(np.full(free_from.size, index, np.int64))
        begins.append(free_from)
        ends.append(free_until)
    return Columns(np.concatenate(nodes), np.concatenate(begins) - begin, np.concatenate(ends) - begin)


def busy_shares(columns: Columns, present: tuple[Seconds, Seconds], window: Interval) -> tuple[float, float, float]:
    """Share of the nodes that is not idle: when the window begins, on average, and when it ends.

    Args:
        columns: Idle fragments, in seconds after the window's begin.
        present: From when until when each node is part of the system, of shape (nodes,) each, in the window's seconds.
        window: First second and end of the trace.
    """
    whole_s = window[1] - window[0]
    edge_s = EDGE * whole_s
    from_s, until_s = present[0] - window[0], present[1] - window[0]
    shares = []
    for begin, end in ((0.0, edge_s), (0.0, whole_s), (whole_s - edge_s, whole_s)):
        idle_s, there_s = (
            float(np.clip(np.minimum(last, end) - np.maximum(first, begin), 0.0, None).sum())
            for first, last in ((columns.begin, columns.end), (from_s, until_s))
        )
        shares.append(1.0 - idle_s / there_s if there_s else 1.0)
    return shares[0], shares[1], shares[2]


def _complement(first: Seconds, last: Seconds, begin: float, end: float) -> tuple[Seconds, Seconds]:
    """The parts of an interval that no other one covers; these are sorted by their first second, and may overlap."""
    latest = np.maximum.accumulate(last) if last.size else last
    free_from = np.maximum(np.concatenate([[begin], latest]), begin)
    free_until = np.minimum(np.concatenate([first, [end]]), end)
    free = free_from < free_until
    return free_from[free], free_until[free]
