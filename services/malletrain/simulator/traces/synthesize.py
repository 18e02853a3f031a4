"""Synthetic traces with the distributions of a given trace (MalleTrain, section 4.1 and Fig. 11)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.columns import Columns, Seconds, columns_of, fragments_of


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


_MAX_CLASSES = 10
_SPANS_PER_CLASS = 200


@dataclass(frozen=True)
class Durations:
    """A discrete distribution of lengths.

    Attributes:
        seconds: Lengths in seconds, ascending, above 0; shape (lengths,).
        shares: Their probabilities, same shape; the sum is 1.
    """

    seconds: Seconds
    shares: Seconds

    @property
    def mean(self) -> float:
        """Expected length in seconds."""
        return float(self.seconds @ self.shares)

    def draw(self, count: int, rng: np.random.Generator) -> Seconds:
        """Draw the lengths of `count` spans in seconds."""
        return _pick(self.seconds, self.shares, count, rng)

    def draw_under_way(self, count: int, rng: np.random.Generator) -> Seconds:
        """Draw the remaining lengths of `count` spans at a random instant, where long spans are more probable."""
        weights = self.seconds * self.shares
        return _pick(self.seconds, weights / weights.sum(), count, rng) * (1.0 - rng.random(count))


@dataclass(frozen=True)
class NodeClass:
    """A class of nodes with about the same number of fragments.

    Attributes:
        weight: Number of these nodes in the original trace.
        idle: Lengths of their fragments; None if they are never idle.
        busy: Lengths of their gaps; None if they are always idle.
    """

    weight: int
    idle: Durations | None
    busy: Durations | None


def synthesize(
    original: Trace, rng: np.random.Generator, nodes: int | None = None, duration_s: float | None = None
) -> Trace:
    """Draw a trace whose fragments and gaps have the distributions of another trace.

    Each node is an independent alternating renewal process. Nodes therefore do not join and leave together as in a log:
    the lengths are alike, but there are more events. Since some nodes are idle far more often than others, the nodes of
    the original are put into up to 10 classes by their number of fragments. Each synthetic node draws from one class.
    Nodes that are never idle, and nodes that are always idle, are classes of their own.

    Spans that had begun before second 0 of the original are omitted. Those that have not ended at its end are censored
    (Kaplan-Meier; the mass beyond the longest length is put on it). A synthetic node begins in the stationary state:
    idle with its class's share of idle time, and with a length-biased remaining length. Fragments are cut at both ends.

    Args:
        original: The trace to imitate.
        rng: Random number generator.
        nodes: Number of nodes, at least 1; None: as in the original.
        duration_s: Length in seconds, above 0; None: as in the original.

    Raises:
        InvalidInputError: an argument is out of its range, or the original has no complete fragment or gap.
    """
    count = len(original.nodes) if nodes is None else nodes
    length_s = original.duration_s if duration_s is None else duration_s
    if count < 1:
        raise InvalidInputError("nodes", "at least 1", count)
    if not 0 < length_s < np.inf:
        raise InvalidInputError("duration_s", "above 0", length_s)
    renewals = renewals_of(original)
    classes = learn(renewals)
    places = rng.permutation(count)
    parts: list[Columns] = []
    begin = 0
    for kind, size in zip(classes, _sizes(classes, count), strict=True):
        own = places[begin : begin + size]
        begin += size
        parts.append(_draw_class(kind, own, length_s, renewals.whole_seconds, rng))
    columns = Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("node", "begin", "end")))
    width = len(str(count))
    names = tuple(f"n{number:0{width}d}" for number in range(1, count + 1))
    return Trace(fragments_of(columns, names), names, float(length_s))


def learn(renewals: Renewals) -> tuple[NodeClass, ...]:
    """The classes of a trace's nodes; see `synthesize`.

    Raises:
        InvalidInputError: there is no complete fragment or no complete gap.
    """
    idle, busy = renewals.fragments, renewals.gaps
    if not idle.complete.any() or not busy.complete.any():
        raise InvalidInputError("trace", "at least one whole idle fragment and one whole gap of a node")
    total = renewals.idle_s.size
    turns = np.bincount(idle.node, minlength=total) + np.bincount(busy.node, minlength=total)
    never = (turns == 0) & (renewals.idle_s == 0)
    always = (turns == 0) & (renewals.idle_s > 0)
    mixed = np.flatnonzero(turns > 0)
    number = int(np.clip(min(idle.complete.sum(), busy.complete.sum()) // _SPANS_PER_CLASS, 1, _MAX_CLASSES))
    whole = (_estimate(idle), _estimate(busy))
    ranked = mixed[np.argsort(turns[mixed], kind="stable")]
    classes = [_class(members, renewals, whole) for members in np.array_split(ranked, min(number, mixed.size))]
    if never.any():
        classes.append(NodeClass(int(never.sum()), None, whole[1]))
    if always.any():
        classes.append(NodeClass(int(always.sum()), whole[0], None))
    return tuple(classes)


def _class(members: NDArray[np.int64], renewals: Renewals, whole: tuple[Durations, Durations]) -> NodeClass:
    own = [_of_nodes(spans, members) for spans in (renewals.fragments, renewals.gaps)]
    idle, busy = (_estimate(s) if s.complete.any() else other for s, other in zip(own, whole, strict=True))
    return NodeClass(members.size, idle, busy)


def _of_nodes(spans: Spans, members: NDArray[np.int64]) -> Spans:
    inside = np.isin(spans.node, members)
    return Spans(spans.node[inside], spans.seconds[inside], spans.complete[inside])


def _estimate(spans: Spans) -> Durations:
    """Product-limit estimate (Kaplan and Meier, 1958) with Efron's tail correction (1967)."""
    ordered = np.sort(spans.seconds)
    values, ended = np.unique(spans.ended(), return_counts=True)
    at_risk = ordered.size - np.searchsorted(ordered, values, side="left")
    survival = np.cumprod(1.0 - ended / at_risk)
    shares = -np.diff(np.concatenate(([1.0], survival)))
    rest = float(survival[-1])
    if rest <= 0:
        return Durations(values, shares / shares.sum())
    closed = np.append(shares, rest)
    return Durations(np.append(values, ordered[-1]), closed / closed.sum())


def _sizes(classes: tuple[NodeClass, ...], count: int) -> list[int]:
    """Number of nodes of each class, in proportion to its weight (largest remainder method)."""
    weights = np.array([kind.weight for kind in classes], dtype=np.float64)
    exact = weights / weights.sum() * count
    sizes = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: count - int(sizes.sum())]] += 1
    return [int(size) for size in sizes]


def _draw_class(
    kind: NodeClass, nodes: NDArray[np.int64], duration_s: float, whole_seconds: bool, rng: np.random.Generator
) -> Columns:
    if kind.idle is None or not nodes.size:
        return Columns(nodes[:0], np.empty(0), np.empty(0))
    if kind.busy is None:
        return Columns(nodes, np.zeros(nodes.size), np.full(nodes.size, duration_s))
    round_up = np.ceil if whole_seconds else np.positive
    starts_idle = rng.random(nodes.size) < kind.idle.mean / (kind.idle.mean + kind.busy.mean)
    first = round_up(np.where(starts_idle, kind.idle.draw_under_way(nodes.size, rng), 0.0))
    rest = np.where(starts_idle, kind.busy.draw(nodes.size, rng), kind.busy.draw_under_way(nodes.size, rng))
    rows = [(nodes[starts_idle], np.zeros(int(starts_idle.sum())), first[starts_idle])]
    begin = first + round_up(rest)
    while nodes.size:
        end = begin + kind.idle.draw(nodes.size, rng)
        rows.append((nodes, begin, end))
        begin = end + kind.busy.draw(nodes.size, rng)
        on = begin < duration_s
        nodes, begin = nodes[on], begin[on]
    node, starts, ends = (np.concatenate(column) for column in zip(*rows, strict=True))
    inside = starts < duration_s
    return Columns(node[inside], starts[inside], np.minimum(ends[inside], duration_s))


def _pick(values: Seconds, shares: Seconds, count: int, rng: np.random.Generator) -> Seconds:
    places = np.searchsorted(np.cumsum(shares), rng.random(count), side="right")
    return values[np.minimum(places, values.size - 1)]
