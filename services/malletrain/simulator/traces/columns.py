"""Traces as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.scavenger.idle_trace import Fragment, Trace

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """The fragments of a trace as arrays of shape (fragments,).

    Attributes:
        node: Index of the node in the trace's list.
        begin: First idle second.
        end: First second that is no longer idle.
    """

    node: NDArray[np.int64]
    begin: Seconds
    end: Seconds


def columns_of(trace: Trace) -> Columns:
    """All fragments that overlap the trace's duration, not cut to it."""
    count = len(trace.fragments)
    position = {name: index for index, name in enumerate(trace.nodes)}
    node = np.fromiter((position[entry.node] for entry in trace.fragments), np.int64, count)
    begin = np.fromiter((entry.idle_from_s for entry in trace.fragments), np.float64, count)
    end = np.fromiter((entry.idle_until_s for entry in trace.fragments), np.float64, count)
    within = (begin < trace.duration_s) & (end > 0)
    return Columns(node[within], begin[within], end[within])


def fragments_of(columns: Columns, names: tuple[str, ...]) -> tuple[Fragment, ...]:
    """Fragments sorted by their first second, then by the order of the nodes, as in a trace."""
    order = np.lexsort((columns.node, columns.begin))
    rows = zip(columns.node[order].tolist(), columns.begin[order].tolist(), columns.end[order].tolist(), strict=True)
    return tuple(Fragment(names[node], begin, end) for node, begin, end in rows)
