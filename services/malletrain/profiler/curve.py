"""The scaling curve of a job, from what is declared, measured or assumed.

Measured wins over declared, declared over assumed:

- *Declared and measured.* The ratio of measured to declared throughput at the measured scales, interpolated in log
  space over log nodes and constant outside them, corrects the declared curve everywhere else.
- *Measured only.* From three measured scales on, the shape that predicts left-out points best fills the gaps (`fits`),
  and FLEET's Eq. 1 goes beyond the largest one. With fewer, straight lines in log-log space between them and a power
  law through the nearest one outside them. Its exponent is the slope of the measured points in log-log space, drawn
  towards the prior exponent as long as the scales are few or close together (a ridge regression), and kept within
  [0, 1], so that the curve neither falls nor scales better than linearly there. Points of the job's family stand in
  where the job itself has not been.
- *Nothing.* The prior: nodes to the power of the prior exponent, times the median throughput on one node of the jobs
  that are known. So an unknown job competes as an ordinary one that scales well: it gets nodes and is measured, and
  never takes more on credit than the median job would. An absolute prior (1 sample/s) would starve it beside measured
  jobs, since a throughput objective adds up samples of all jobs.

What the allocator gets never falls with nodes: points that do (noise, or a job that is past its best scale) are
pooled with their neighbours, measured ones weighing by their errors or steps (isotonic regression). Each point says how
far the truth may lie off: a measured one its own error, one between measured scales what the shapes disagree by, one
beyond them more with every doubling.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from malletrain.profiler.fits import Fit, best_fit, beyond, interpolated
from malletrain.profiler.isotonic import non_decreasing
from malletrain.profiler.knots import LEAST_RATE, Knot
from malletrain.runtime.errors import InvalidInputError

PRIOR_ERROR = 0.5
"""Relative error of what is merely assumed."""

DECLARED_ERROR = 0.2
"""Relative error of what a user declares: right on another machine, or for the model before."""

_INSIDE_ERROR, _OUTSIDE_ERROR = 0.05, 0.1


class Source(Enum):
    """Where a figure comes from."""

    PRIOR = 1
    DECLARED = 2
    MEASURED = 3
    EXTRAPOLATED = 4
    FAMILY = 5


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the estimate.

    Attributes:
        nodes: Scale in nodes.
        rate: Samples per second.
        source: Where the rate comes from.
        error: How far the truth may lie off, relative to the rate.
        steps: Steps that it rests on; 0 where it was not measured.
        unix_seconds: When it was last measured, in seconds since the epoch; 0 where it was not.
    """

    nodes: int
    rate: float
    source: Source
    error: float = 0.0
    steps: int = 0
    unix_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Prior:
    """What is assumed of an unknown job.

    Attributes:
        rate: Samples per second on one node, above 0.
        exponent: Throughput grows as nodes to this power, in (0, 1].
        weight: How far apart measured scales must be (sum of squares of log nodes) to count as much as `exponent`.
    """

    rate: float
    exponent: float
    weight: float


def estimate(
    max_nodes: int,
    min_nodes: int,
    declared: Sequence[Knot],
    measured: Sequence[Knot],
    prior: Prior,
    fit: Fit | None = None,
) -> list[CurvePoint]:
    """The curve that the allocator should believe in.

    Args:
        max_nodes: Largest scale of the job, at least `min_nodes`; the last point is there.
        min_nodes: Smallest scale, at least 1.
        declared: The user's curve; may be empty. Points at 0 nodes are ignored.
        measured: Monitor's points; may be empty. Rates below LEAST_RATE are no measurements and are ignored.
        prior: What holds where nothing is known.
        fit: The best fit of the measured points, where it is known already.

    Returns:
        Points by nodes ascending, from at most `min_nodes` to `max_nodes`, rates at least 0 and never falling.

    Raises:
        InvalidInputError: the bounds don't fit each other, or a declared or measured scale occurs twice or has a rate
            that is negative or not finite.
    """
    if min_nodes < 1:
        raise InvalidInputError("min_nodes", "at least 1", min_nodes)
    if max_nodes < min_nodes:
        raise InvalidInputError("max_nodes", f"at least min_nodes ({min_nodes})", max_nodes)
    drawn = _checked("declared", declared)
    known = [knot for knot in _checked("measured", measured) if knot.rate >= LEAST_RATE and knot.nodes <= max_nodes]
    if any(knot.rate >= LEAST_RATE for knot in drawn):
        points = _from_declared(_grid(max_nodes, [1, *_nodes(drawn), *_nodes(known)]), drawn, known, prior)
    elif known:
        grid = _grid(max_nodes, [min_nodes, *_powers_of_two(max_nodes), *_nodes(known)])
        points = _from_measured(grid, known, prior, fit or best_fit(known))
    else:
        grid = _grid(max_nodes, [min_nodes, *_powers_of_two(max_nodes)])
        points = [CurvePoint(nodes, prior.rate * math.pow(nodes, prior.exponent), Source.PRIOR) for nodes in grid]
    return _never_falling(points, known)


def single_node_rate(points: Sequence[CurvePoint]) -> float:
    """Throughput on 1 node in samples per second: a straight line from 0 where the curve begins above 1 node."""
    return points[0].rate / points[0].nodes if points else 0.0


def prior_rate(known_rates: Iterable[float], default: float) -> float:
    """The median of the known jobs' throughput on one node; the default, in samples per second, without any."""
    rates = [rate for rate in known_rates if rate > 0]
    return statistics.median(rates) if rates else default


@dataclass(frozen=True, slots=True)
class Cost:
    """A rescale cost: the stall in seconds, and where it comes from."""

    seconds: float
    source: Source


def rescale_cost(measured: float | None, declared: float | None, default: float, family: float | None = None) -> Cost:
    """The stall of a rescale in seconds: measured, else of the family, else declared, else the default prior."""
    if measured is not None:
        return Cost(measured, Source.MEASURED)
    if family is not None:
        return Cost(family, Source.FAMILY)
    if declared is not None:
        return Cost(declared, Source.DECLARED)
    return Cost(default, Source.PRIOR)


@dataclass(frozen=True, slots=True)
class PairStall:
    """The stall of rescales from one scale to another, in seconds."""

    from_nodes: int
    to_nodes: int
    seconds: float


def pair_stalls(measured: Iterable[PairStall], up: Cost, down: Cost, weight: float) -> tuple[PairStall, ...]:
    """Stalls by pair of scales: the mean of what was measured there, drawn towards R_up or R_down while that is little.

    Args:
        measured: One entry per measured rescale.
        up: R_up, what growths cost in general.
        down: R_down, what shrinks cost in general.
        weight: How many measurements the general figure counts as, above 0.

    Returns:
        One entry per pair that was measured, in the order of the scales.
    """
    found: dict[tuple[int, int], list[float]] = {}
    for entry in measured:
        found.setdefault((entry.from_nodes, entry.to_nodes), []).append(entry.seconds)
    return tuple(
        PairStall(before, after, (sum(stalls) + weight * general.seconds) / (len(stalls) + weight))
        for (before, after), stalls in sorted(found.items())
        for general in (up if after > before else down,)
    )


def _from_declared(grid: Sequence[int], drawn: Sequence[Knot], known: Sequence[Knot], prior: Prior) -> list[CurvePoint]:
    shape = {nodes: _declared_rate(nodes, drawn, prior) for nodes in grid}
    ratios = [
        (math.log(knot.nodes), math.log(knot.rate / shape[knot.nodes]))
        for knot in known
        if shape[knot.nodes] >= LEAST_RATE
    ]
    exact = {knot.nodes: knot.rate for knot in known}
    points = []
    for nodes in grid:
        if nodes in exact:
            points.append(CurvePoint(nodes, exact[nodes], Source.MEASURED))
        elif known:
            ratio = math.exp(interpolated(math.log(nodes), ratios)) if ratios else 1.0
            points.append(CurvePoint(nodes, shape[nodes] * ratio, Source.EXTRAPOLATED))
        else:
            source = Source.DECLARED if nodes <= drawn[-1].nodes else Source.EXTRAPOLATED
            points.append(CurvePoint(nodes, shape[nodes], source))
    return points


def _declared_rate(nodes: int, drawn: Sequence[Knot], prior: Prior) -> float:
    """Straight lines from 0 at 0 nodes through the declared points; beyond the last, a power law as if measured."""
    last = drawn[-1]
    if nodes > last.nodes:
        rising = [knot for knot in drawn if knot.rate >= LEAST_RATE]
        return last.rate * math.pow(nodes / last.nodes, _exponent(rising, prior))
    index = bisect_left(_nodes(drawn), nodes)
    right = drawn[index]
    left = drawn[index - 1] if index else Knot(0, 0.0)
    return left.rate + (right.rate - left.rate) * (nodes - left.nodes) / (right.nodes - left.nodes)


def _from_measured(grid: Sequence[int], known: Sequence[Knot], prior: Prior, fit: Fit | None) -> list[CurvePoint]:
    exponent = _exponent(known, prior)
    logs = [(math.log(knot.nodes), math.log(knot.rate)) for knot in known]
    exact = {knot.nodes for knot in known}
    points = []
    for nodes in grid:
        if fit is not None:
            rate = _beyond(nodes, known[-1], fit) if nodes > known[-1].nodes else _within(nodes, known, fit)
        elif known[0].nodes <= nodes <= known[-1].nodes:
            rate = known[0].rate if len(known) == 1 else math.exp(interpolated(math.log(nodes), logs))
        else:
            nearest = known[0] if nodes < known[0].nodes else known[-1]
            rate = nearest.rate * math.pow(nodes / nearest.nodes, exponent)
        points.append(CurvePoint(nodes, rate, Source.MEASURED if nodes in exact else Source.EXTRAPOLATED))
    return points


def _within(nodes: int, known: Sequence[Knot], fit: Fit) -> float:
    """The fit's rate, kept between those of the measured neighbours where these rise."""
    rate = fit.rate(nodes)
    right = bisect_left(_nodes(known), nodes)
    if right == 0 or known[right].nodes == nodes:
        return rate
    low, high = fit.rate(known[right - 1].nodes), fit.rate(known[right].nodes)
    return min(max(rate, low), high) if low <= high else rate


def _beyond(nodes: int, last: Knot, fit: Fit) -> float:
    top = replace(last, rate=fit.rate(last.nodes))
    return beyond(nodes, top, fit.rate(last.nodes - 1) if last.nodes > 1 else 0.0)


def _exponent(knots: Sequence[Knot], prior: Prior) -> float:
    """Slope of the points in log-log space, drawn towards the prior's; within [0, 1]."""
    xs = [math.log(knot.nodes) for knot in knots]
    ys = [math.log(knot.rate) for knot in knots]
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    variance = sum((x - x_mean) ** 2 for x in xs)
    return min(1.0, max(0.0, (prior.weight * prior.exponent + covariance) / (prior.weight + variance)))


def _never_falling(points: Sequence[CurvePoint], known: Sequence[Knot]) -> list[CurvePoint]:
    measured = {knot.nodes: knot for knot in known}
    weights = [measured[point.nodes].weight if point.nodes in measured else 1.0 for point in points]
    rates = non_decreasing([point.rate for point in points], weights)
    return [
        _annotated(replace(point, rate=rate), measured.get(point.nodes), known)
        for point, rate in zip(points, rates, strict=True)
    ]


def _annotated(point: CurvePoint, knot: Knot | None, known: Sequence[Knot]) -> CurvePoint:
    if knot is not None:
        source = Source.FAMILY if knot.shared else Source.MEASURED
        return replace(point, source=source, error=knot.error, steps=knot.steps, unix_seconds=knot.unix_seconds)
    return replace(point, error=_doubt(point, known))


def _doubt(point: CurvePoint, known: Sequence[Knot]) -> float:
    """What a point that was not measured may be off by: so much for every doubling away from a measured scale."""
    if point.source is Source.DECLARED:
        return DECLARED_ERROR
    if not known:
        return PRIOR_ERROR
    nearest = min(known, key=lambda knot: abs(math.log(knot.nodes / point.nodes)))
    doublings = abs(math.log2(nearest.nodes / point.nodes))
    inside = known[0].nodes < point.nodes < known[-1].nodes
    return min(PRIOR_ERROR, math.hypot(nearest.error, doublings * (_INSIDE_ERROR if inside else _OUTSIDE_ERROR)))


def _checked(name: str, knots: Sequence[Knot]) -> list[Knot]:
    kept = sorted((knot for knot in knots if knot.nodes > 0), key=lambda knot: knot.nodes)
    for knot, following in pairwise(kept):
        if knot.nodes == following.nodes:
            raise InvalidInputError(f"{name}.nodes", "each scale once", knot.nodes)
    for knot in kept:
        if not math.isfinite(knot.rate) or knot.rate < 0:
            raise InvalidInputError(f"{name}.rate", "a finite figure of at least 0 samples/s", knot.rate)
    return kept


def _grid(max_nodes: int, scales: Iterable[int]) -> list[int]:
    return sorted({nodes for nodes in scales if nodes < max_nodes} | {max_nodes})


def _powers_of_two(max_nodes: int) -> list[int]:
    return [2**power for power in range(max_nodes.bit_length())]


def _nodes(knots: Sequence[Knot]) -> list[int]:
    return [knot.nodes for knot in knots]
