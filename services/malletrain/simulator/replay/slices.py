"""A replay in slices of time: node-hours, samples and events of each hour, day or week. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.node_events import NodeEvent

HOUR_S, DAY_S, WEEK_S = 3600.0, 86_400.0, 604_800.0
MAX_SLICES = 62
"""Bars that a chart has room for."""
_LENGTHS = (
    (60.0, "every minute"),
    (300.0, "every five minutes"),
    (900.0, "every quarter of an hour"),
    (HOUR_S, "every hour"),
    (6 * HOUR_S, "every six hours"),
    (DAY_S, "every day"),
    (WEEK_S, "every week"),
    (4 * WEEK_S, "every four weeks"),
    (13 * WEEK_S, "every thirteen weeks"),
    (52 * WEEK_S, "every 52 weeks"),
)
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Slices:
    """Slices of equal length; the last one may be shorter.

    Attributes:
        edges: Where they begin, in seconds, and where the last one ends; shape (slices + 1,).
        words: How often one begins: `every six hours`.
    """

    edges: Values
    words: str

    @property
    def lengths(self) -> Values:
        """Seconds of each slice, shape (slices,)."""
        return np.diff(self.edges)


def slices_of(duration_s: float) -> Slices:
    """Slices of a time: as short as there is room for in a chart, and of a length that people count in."""
    length_s, words = next(
        ((length, words) for length, words in _LENGTHS if duration_s <= MAX_SLICES * length),
        (duration_s / MAX_SLICES, f"{MAX_SLICES} slices"),
    )
    return Slices(edges_of(duration_s, length_s), words)


def edges_of(duration_s: float, length_s: float) -> Values:
    """Begins of slices of a length, and the end of the last one, which may be shorter; seconds, shape (slices + 1,)."""
    begins = np.arange(0.0, duration_s, length_s)
    return np.append(begins[begins < duration_s], duration_s)


def whole_edges(duration_s: float, length_s: float) -> Values:
    """As `edges_of`, of the slices that are whole; shape (slices + 1,)."""
    return np.asarray(np.arange(int(duration_s // length_s) + 1) * length_s, np.float64)


def integral_between(times_s: ArrayLike, values: ArrayLike, edges_s: ArrayLike) -> Values:
    """Integral of a step function over each interval between two edges, shape (edges - 1,).

    Args:
        times_s: When values begin to hold, in order, shape (n,). Before the first one the function is 0.
        values: The values, shape (n,); each holds until the next one begins.
        edges_s: Edges in order.
    """
    times, steps = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    edges = np.asarray(edges_s, np.float64)
    if not times.size:
        return np.zeros(max(0, edges.size - 1))
    last = max(float(edges[-1]), float(times[-1]))
    places = np.append(times, last)
    sums = np.concatenate(([0.0], np.cumsum(np.diff(places) * steps)))
    return np.asarray(np.diff(np.interp(edges, places, sums)), np.float64)


def idle_node_hours(events: Sequence[NodeEvent], edges_s: ArrayLike) -> Values:
    """Node-hours offered between consecutive edges (Eq. 17), shape (edges - 1,)."""
    times = [event.time_s for event in events]
    counts = np.cumsum([len(event.joined) - len(event.left) for event in events])
    return integral_between(times, counts, edges_s) / HOUR_S


def node_seconds(trace: Trace, edges_s: ArrayLike) -> Values:
    """Node-seconds of a system between consecutive edges: of each node as long as it was part; shape (edges - 1,)."""
    changes = [(0.0, len(trace.nodes))]
    for begin, end in trace.present_s.values():
        changes += [(0.0, -1), (begin, 1), (end, -1)]
    changes.sort()
    counts = np.cumsum([change for _, change in changes])
    return integral_between([time for time, _ in changes], counts, edges_s)


def nodes_taken_back(events: Sequence[NodeEvent], edges_s: ArrayLike) -> Values:
    """Nodes that left the idle set between consecutive edges, shape (edges - 1,)."""
    times = [event.time_s for event in events]
    left = [float(len(event.left)) for event in events]
    return np.asarray(np.histogram(times, bins=np.asarray(edges_s), weights=left)[0], np.float64)
