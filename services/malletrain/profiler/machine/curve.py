"""The scaling curve of a job, from what is declared, measured or assumed.

Measured values take precedence over declared ones, and declared ones over assumptions:

- *Declared and measured.* The ratio of measured to declared throughput at the measured scales corrects the declared
  curve at all others. The ratio is interpolated in log-log space and constant outside the measured scales.
- *Measured only.* With three or more measured scales, the shape with the smallest cross-validation error (`fits`) fills
  the gaps, and FLEET's Eq. 1 extends the curve beyond the largest one. With fewer, the curve is linear in log-log space
  between them and a power law outside. The exponent of the power law is the slope of the measured points, drawn
  towards the prior exponent while the scales are few or close together (a ridge regression), and limited to [0, 1], so
  that the curve neither falls nor scales better than linearly. Points of the job's family are used at scales where the
  job itself has not been measured.
- *Nothing known.* The prior: nodes to the power of the prior exponent, times the median single-node rate of the known
  jobs. An unknown job therefore competes as an average job that scales well: it gets nodes, and is measured on them. It
  never gets more than the median job would. An absolute prior (1 sample/s) would starve it beside measured jobs, since
  the objective adds up the samples of all jobs.

The curve never falls with more nodes. Where points do (noise, or a job beyond its best scale), neighbours are pooled by
isotonic regression, weighted by their errors or steps. Each point has an error: its own if it was measured, otherwise
the error of the nearest measured point plus a share for every doubling of the distance from it.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from malletrain.model.scaling import MIN_RATE
from malletrain.profiler.machine.fits import Fit, best_fit, fleet_extrapolation, interpolate
from malletrain.profiler.machine.points import CurvePoint, CurveSource
from malletrain.runtime.errors import InvalidInputError

PRIOR_ERROR = 0.5
"""Relative error of the prior."""

DECLARED_ERROR = 0.2
"""Relative error of a declared curve: it may come from another machine or an earlier version of the model."""

_INSIDE_ERROR, _OUTSIDE_ERROR = 0.05, 0.1
"""Relative error per doubling of the distance from a measured scale, between and beyond the measured scales."""


@dataclass(frozen=True, slots=True)
class Prior:
    """The curve that is assumed of an unknown job.

    Attributes:
        rate: Samples/s on one node, above 0.
        exponent: Throughput grows as nodes to this power, in (0, 1].
        weight: Spread of the measured scales (sum of squares of log nodes) from which on their slope counts as much as
            `exponent`.
    """

    rate: float
    exponent: float
    weight: float


def estimate(
    max_nodes: int,
    min_nodes: int,
    declared: Sequence[CurvePoint],
    measured: Sequence[CurvePoint],
    prior: Prior,
    fit: Fit | None = None,
) -> list[CurvePoint]:
    """The curve of a job for the allocator.

    Args:
        max_nodes: Largest scale of the job in nodes, at least `min_nodes`. The last point is there.
        min_nodes: Smallest scale in nodes, at least 1.
        declared: The user's curve; may be empty. Points at 0 nodes are ignored.
        measured: Points measured of the job or its family; may be empty. Rates below MIN_RATE are ignored.
        prior: The curve where nothing is known.
        fit: The best fit of the measured points, where the caller has it already.

    Returns:
        Points by nodes ascending, from at most `min_nodes` to `max_nodes`. Rates are at least 0 and never fall.

    Raises:
        InvalidInputError: the bounds contradict each other, or a declared or measured scale occurs twice or has a rate
            that is negative or not finite.
    """
    if min_nodes < 1:
        raise InvalidInputError("min_nodes", "at least 1", min_nodes)
    if max_nodes < min_nodes:
        raise InvalidInputError("max_nodes", f"at least min_nodes ({min_nodes})", max_nodes)
    drawn = _checked_points("declared", declared)
    known = [
        point for point in _checked_points("measured", measured) if point.rate >= MIN_RATE and point.nodes <= max_nodes
    ]
    if any(point.rate >= MIN_RATE for point in drawn):
        points = _from_declared(_grid(max_nodes, [1, *_nodes(drawn), *_nodes(known)]), drawn, known, prior)
    elif known:
        grid = _grid(max_nodes, [min_nodes, *_powers_of_two(max_nodes), *_nodes(known)])
        points = _from_measured(grid, known, prior, fit or best_fit(known))
    else:
        grid = _grid(max_nodes, [min_nodes, *_powers_of_two(max_nodes)])
        points = [
            CurvePoint(nodes, prior.rate * math.pow(nodes, prior.exponent), source=CurveSource.PRIOR) for nodes in grid
        ]
    return _never_falling(points, known)


def single_node_rate(points: Sequence[CurvePoint]) -> float:
    """Samples/s on one node; where the curve begins at a larger scale, linear scaling below it is assumed."""
    return points[0].rate / points[0].nodes if points else 0.0


def prior_rate(known_rates: Iterable[float], default: float) -> float:
    """Median single-node rate of the known jobs in samples/s; the default without any."""
    rates = [rate for rate in known_rates if rate > 0]
    return statistics.median(rates) if rates else default


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Isotonic regression: the non-decreasing sequence with the least weighted squared distance from `values`.

    Uses the pool adjacent violators algorithm.

    Args:
        values: Values in order.
        weights: Weight of each value, above 0.
    """
    # Blocks of pooled values: mean, weight, length.
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, total, length = blocks.pop()
            pooled = total + block[1]
            block = ((mean * total + block[0] * block[1]) / pooled, pooled, length + block[2])
        blocks.append(block)
    return [mean for mean, _, length in blocks for _ in range(length)]


def _from_declared(
    grid: Sequence[int], drawn: Sequence[CurvePoint], known: Sequence[CurvePoint], prior: Prior
) -> list[CurvePoint]:
    shape = {nodes: _declared_rate(nodes, drawn, prior) for nodes in grid}
    ratios = [
        (math.log(point.nodes), math.log(point.rate / shape[point.nodes]))
        for point in known
        if shape[point.nodes] >= MIN_RATE
    ]
    exact = {point.nodes: point.rate for point in known}
    points = []
    for nodes in grid:
        if nodes in exact:
            points.append(CurvePoint(nodes, exact[nodes], source=CurveSource.MEASURED))
        elif known:
            ratio = math.exp(interpolate(math.log(nodes), ratios)) if ratios else 1.0
            points.append(CurvePoint(nodes, shape[nodes] * ratio, source=CurveSource.EXTRAPOLATED))
        else:
            source = CurveSource.DECLARED if nodes <= drawn[-1].nodes else CurveSource.EXTRAPOLATED
            points.append(CurvePoint(nodes, shape[nodes], source=source))
    return points


def _declared_rate(nodes: int, drawn: Sequence[CurvePoint], prior: Prior) -> float:
    """Linear interpolation from (0, 0) through the declared points; a power law beyond the last one."""
    last = drawn[-1]
    if nodes > last.nodes:
        rising = [point for point in drawn if point.rate >= MIN_RATE]
        return last.rate * math.pow(nodes / last.nodes, _exponent(rising, prior))
    index = bisect_left(_nodes(drawn), nodes)
    right = drawn[index]
    left = drawn[index - 1] if index else CurvePoint(0, 0.0)
    return left.rate + (right.rate - left.rate) * (nodes - left.nodes) / (right.nodes - left.nodes)


def _from_measured(grid: Sequence[int], known: Sequence[CurvePoint], prior: Prior, fit: Fit | None) -> list[CurvePoint]:
    exponent = _exponent(known, prior)
    logs = [(math.log(point.nodes), math.log(point.rate)) for point in known]
    exact = {point.nodes for point in known}
    points = []
    for nodes in grid:
        if fit is not None:
            rate = _beyond(nodes, known[-1], fit) if nodes > known[-1].nodes else _within(nodes, known, fit)
        elif known[0].nodes <= nodes <= known[-1].nodes:
            rate = known[0].rate if len(known) == 1 else math.exp(interpolate(math.log(nodes), logs))
        else:
            nearest = known[0] if nodes < known[0].nodes else known[-1]
            rate = nearest.rate * math.pow(nodes / nearest.nodes, exponent)
        points.append(
            CurvePoint(nodes, rate, source=CurveSource.MEASURED if nodes in exact else CurveSource.EXTRAPOLATED)
        )
    return points


def _within(nodes: int, known: Sequence[CurvePoint], fit: Fit) -> float:
    """The fit's rate, limited to the range between the measured neighbours where these rise."""
    rate = fit.rate(nodes)
    right = bisect_left(_nodes(known), nodes)
    if right == 0 or known[right].nodes == nodes:
        return rate
    low, high = fit.rate(known[right - 1].nodes), fit.rate(known[right].nodes)
    return min(max(rate, low), high) if low <= high else rate


def _beyond(nodes: int, last: CurvePoint, fit: Fit) -> float:
    top = replace(last, rate=fit.rate(last.nodes))
    return fleet_extrapolation(nodes, top, fit.rate(last.nodes - 1) if last.nodes > 1 else 0.0)


def _exponent(points: Sequence[CurvePoint], prior: Prior) -> float:
    """Slope of the points in log-log space, drawn towards the prior's; within [0, 1]."""
    xs = [math.log(point.nodes) for point in points]
    ys = [math.log(point.rate) for point in points]
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    variance = sum((x - x_mean) ** 2 for x in xs)
    return min(1.0, max(0.0, (prior.weight * prior.exponent + covariance) / (prior.weight + variance)))


def _never_falling(points: Sequence[CurvePoint], known: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The points with rates that never fall, each with its error."""
    measured = {point.nodes: point for point in known}
    weights = [measured[point.nodes].weight if point.nodes in measured else 1.0 for point in points]
    rates = isotonic([point.rate for point in points], weights)
    return [
        replace(measured[point.nodes], rate=rate)
        if point.nodes in measured
        else replace(point, rate=rate, relative_error=_error(point, known))
        for point, rate in zip(points, rates, strict=True)
    ]


def _error(point: CurvePoint, known: Sequence[CurvePoint]) -> float:
    """Relative error of a point that was not measured: it grows with every doubling away from a measured scale."""
    if point.source is CurveSource.DECLARED:
        return DECLARED_ERROR
    if not known:
        return PRIOR_ERROR
    nearest = min(known, key=lambda other: abs(math.log(other.nodes / point.nodes)))
    doublings = abs(math.log2(nearest.nodes / point.nodes))
    inside = known[0].nodes < point.nodes < known[-1].nodes
    distance_error = doublings * (_INSIDE_ERROR if inside else _OUTSIDE_ERROR)
    return min(PRIOR_ERROR, math.hypot(nearest.relative_error, distance_error))


def _checked_points(name: str, points: Sequence[CurvePoint]) -> list[CurvePoint]:
    ordered = sorted((point for point in points if point.nodes > 0), key=lambda point: point.nodes)
    for point, following in pairwise(ordered):
        if point.nodes == following.nodes:
            raise InvalidInputError(f"{name}.nodes", "each scale once", point.nodes)
    for point in ordered:
        if not math.isfinite(point.rate) or point.rate < 0:
            raise InvalidInputError(f"{name}.rate", "a finite figure of at least 0 samples/s", point.rate)
    return ordered


def _grid(max_nodes: int, scales: Iterable[int]) -> list[int]:
    return sorted({nodes for nodes in scales if nodes < max_nodes} | {max_nodes})


def _powers_of_two(max_nodes: int) -> list[int]:
    return [2**power for power in range(max_nodes.bit_length())]


def _nodes(points: Sequence[CurvePoint]) -> list[int]:
    return [point.nodes for point in points]
