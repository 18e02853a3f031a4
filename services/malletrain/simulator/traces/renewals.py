"""Lengths of idle fragments and gaps of a trace, and the distance between two traces in both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.columns import Seconds, columns_of


@dataclass(frozen=True)
class Spans:
    """Lengths of fragments, or of gaps between the fragments of a node. Arrays of shape (spans,).

    Attributes:
        node: Index of the node.
        seconds: Length in seconds.
        complete: Whether the span ended within the trace; otherwise it lasted at least this long.
    """

    node: NDArray[np.int64]
    seconds: Seconds
    complete: NDArray[np.bool_]

    def ended(self) -> Seconds:
        """Lengths of the complete spans."""
        return self.seconds[self.complete]


@dataclass(frozen=True)
class Renewals:
    """Idle and busy spans of the nodes of a trace.

    Attributes:
        fragments: Idle spans.
        gaps: Busy spans.
        idle_s: Idle seconds of each node, shape (nodes,).
        whole_seconds: Whether all fragments begin and end at whole seconds.
    """

    fragments: Spans
    gaps: Spans
    idle_s: Seconds
    whole_seconds: bool


def renewals_of(trace: Trace) -> Renewals:
    """Fragments and gaps between second 0 and the trace's end.

    Spans that had begun before second 0 are omitted, since their length is not known. Spans that have not ended at the
    trace's end are kept as not complete.
    """
    columns = columns_of(trace)
    order = np.lexsort((columns.begin, columns.node))
    node, begin, end = columns.node[order], columns.begin[order], columns.end[order]
    clipped_end = np.minimum(end, trace.duration_s)
    idle_s = np.bincount(node, clipped_end - np.maximum(begin, 0.0), minlength=len(trace.nodes)).astype(np.float64)
    last = np.append(node[1:] != node[:-1], True)[: node.size]
    begun = begin > 0
    fragments = Spans(node[begun], (clipped_end - begin)[begun], (end < trace.duration_s)[begun])
    until = np.where(last, trace.duration_s, np.append(begin[1:], 0.0)[: node.size])
    followed = end < trace.duration_s
    gaps = Spans(node[followed], (until - end)[followed], ~last[followed])
    whole = bool(np.all(begin % 1 == 0) and np.all(end % 1 == 0))
    return Renewals(fragments, gaps, idle_s, whole)


def ks_distance(one: Seconds, other: Seconds) -> float:
    """Kolmogorov-Smirnov distance of two samples: largest difference of their distribution functions, 0 to 1.

    Raises:
        ValueError: a sample is empty.
    """
    if not one.size or not other.size:
        raise ValueError("samples: expected at least one value in each")
    values = np.union1d(one, other)
    shares = (np.searchsorted(np.sort(sample), values, side="right") / sample.size for sample in (one, other))
    return float(np.abs(next(shares) - next(shares)).max())


def histogram(seconds: Seconds, limits: tuple[float, ...]) -> tuple[float, ...]:
    """Shares of a sample below the first limit, between limits, and above the last, shape (limits + 1,)."""
    counts = np.histogram(seconds, bins=(-np.inf, *limits, np.inf))[0]
    return tuple((counts / max(1, seconds.size)).tolist())
