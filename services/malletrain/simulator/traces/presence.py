"""From when until when each node of a log counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.traces.columns import Seconds
from malletrain.simulator.traces.log_window import DAY_S, Interval
from malletrain.simulator.traces.run_table import RunTable
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
