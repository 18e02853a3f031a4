"""From the periods in which nodes are held to those in which they are idle."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from malletrain.simulator.traces.columns import Columns, Seconds
from malletrain.simulator.traces.log_window import Interval
from malletrain.simulator.traces.run_table import RunTable

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
