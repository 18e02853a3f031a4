"""Shapes of scaling curves, fitted to measured points.

With a fixed batch per node, a step on n nodes takes n·batch/O(n) seconds, where O(n) is the throughput. Two models of
this time are linear in coefficients that cannot be negative:

- *Amdahl*: `n/O(n) = a + c·(n - 1)`. The serial share of a step does not shrink with more nodes.
- *Ring*: `n/O(n) = a + b·(n - 1)/n + c·(n - 1)`. Compute time, and a ring all-reduce: each node sends 2·(n - 1)/n times
  the gradients (bandwidth) in 2·(n - 1) messages (latency). If communication is hidden, b and c are close to 0.

*Monotone* interpolation (straight lines in log-log space) assumes nothing. It is used for curves with a knee.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from malletrain.model.scaling import MIN_RATE
from malletrain.profiler.machine.points import CurvePoint

MIN_POINTS = 3
"""Number of measured scales from which on a shape is fitted."""

_Term = Callable[[int], float]
_MODELS: dict[str, tuple[_Term, ...]] = {
    "amdahl": (lambda n: float(n - 1),),
    "ring": (lambda n: (n - 1) / n, lambda n: float(n - 1)),
}
MONOTONE = "monotone"
# A model is preferred to interpolation unless its cross-validation error is larger by more than this.
_MODEL_PREFERENCE = 0.01
_MAX_FOLDS = 5
_LINE_POINTS = 40
# Pivot below which the columns of a least-squares problem count as linearly dependent.
_DEPENDENT = 1e-9
# How far the outermost slopes are continued, in log nodes.
_FAR = 10.0
# Relative error assumed of a model. Points with a larger error are drawn towards the model.
_MODEL_ERROR = 0.05


@dataclass(frozen=True)
class Fit:
    """A shape fitted to measured points.

    Attributes:
        name: "amdahl", "ring" or "monotone".
        model: Samples/s at a scale in nodes, before the correction at the measured scales.
        corrections: Pairs of log nodes and log of the correction factor, ascending.
        misfit: Largest distance between the model and a point, as a log; 0 for interpolation.
    """

    name: str
    model: Callable[[int], float]
    corrections: tuple[tuple[float, float], ...]
    misfit: float = 0.0

    def rate(self, nodes: int) -> float:
        """Samples/s at a scale: the model times its correction, which is interpolated linearly in log-log space."""
        return self.model(nodes) * math.exp(interpolate(math.log(nodes), self.corrections))

    def line(self, min_nodes: int, max_nodes: int) -> tuple[tuple[int, float], ...]:
        """The shape itself, without what single points draw it to: scales and samples/s, at most _LINE_POINTS.

        Args:
            min_nodes: Smallest scale in nodes, at least 1.
            max_nodes: Largest scale in nodes, at least `min_nodes`.
        """
        steps = [math.log(max_nodes / min_nodes) * place / (_LINE_POINTS - 1) for place in range(_LINE_POINTS)]
        scales = sorted({round(min_nodes * math.exp(step)) for step in steps})
        rate = self.rate if self.name == MONOTONE else self.model
        return tuple((nodes, rate(nodes)) for nodes in scales)


def interpolate(x: float, pairs: Sequence[tuple[float, float]]) -> float:
    """Linear interpolation between (x, y) pairs, ascending by x; constant outside them. At least one pair."""
    index = bisect_left([pair[0] for pair in pairs], x)
    if index == 0:
        return pairs[0][1]
    if index == len(pairs):
        return pairs[-1][1]
    (x0, y0), (x1, y1) = pairs[index - 1], pairs[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def all_fits(points: Sequence[CurvePoint]) -> tuple[Fit, ...]:
    """Every shape that can be fitted.

    Args:
        points: Measured points, nodes strictly ascending, rates at least MIN_RATE.

    Returns:
        Models first, monotone interpolation last; nothing with fewer than two points.
    """
    if len(points) < 2:
        return ()
    return (*(_fit_model(name, points) for name in _MODELS), _monotone(points))


def best_fit(points: Sequence[CurvePoint]) -> Fit | None:
    """The shape with the smallest error in leave-one-out cross-validation; the two ends are never left out.

    Returns:
        None with fewer than MIN_POINTS points.
    """
    if len(points) < MIN_POINTS:
        return None
    scores = {name: _cross_validation_error(name, points) for name in (*_MODELS, MONOTONE)}
    name = min(scores, key=lambda name: scores[name] + (_MODEL_PREFERENCE if name == MONOTONE else 0.0))
    return _fit(name, points)


def fleet_extrapolation(nodes: int, last: CurvePoint, rate_before: float) -> float:
    """Samples/s beyond the largest measured scale M (FLEET, Eq. 1).

    Efficiency per node falls by the same factor with each further node:
    `O(m) = m · O(M)/M · (O(M)/O(M-1) · (M-1)/M)^(m-M)`. The result is at most linear in m. It is at least the rate at
    M, since a job can leave the other nodes idle.

    Args:
        nodes: Scale m in nodes, at least `last.nodes`.
        last: The largest measured point, M.
        rate_before: Samples/s at M-1 nodes. Ignored for M = 1, where the curve continues linearly.
    """
    linear = last.rate * nodes / last.nodes
    if last.nodes == 1 or rate_before < MIN_RATE:
        return linear
    factor = min(1.0, last.rate / rate_before * (last.nodes - 1) / last.nodes)
    return max(last.rate, linear * math.pow(factor, nodes - last.nodes))


def _fit(name: str, points: Sequence[CurvePoint]) -> Fit:
    return _monotone(points) if name == MONOTONE else _fit_model(name, points)


def _monotone(points: Sequence[CurvePoint]) -> Fit:
    logs = [(math.log(point.nodes), math.log(point.rate)) for point in points]
    # Outside the measured scales the outermost slopes continue, limited to between flat and linear scaling.
    first, last = _continue_slope(logs[1], logs[0], 0.0), _continue_slope(logs[-2], logs[-1], logs[-1][0] + _FAR)
    return Fit(MONOTONE, lambda _: 1.0, (*first, *logs, *last))


def _continue_slope(before: tuple[float, float], end: tuple[float, float], x: float) -> tuple[tuple[float, float], ...]:
    if x == end[0]:
        return ()
    slope = min(1.0, max(0.0, (end[1] - before[1]) / (end[0] - before[0])))
    return ((x, end[1] + slope * (x - end[0])),)


def _fit_model(name: str, points: Sequence[CurvePoint]) -> Fit:
    terms = _MODELS[name]
    coefficients = _least_squares(terms, points)

    def model(nodes: int) -> float:
        return nodes / (coefficients[0] + sum(c * term(nodes) for c, term in zip(coefficients[1:], terms, strict=True)))

    misses = [math.log(point.rate / model(point.nodes)) for point in points]
    corrections = ((math.log(point.nodes), _trust(point) * miss) for point, miss in zip(points, misses, strict=True))
    return Fit(name, model, tuple(corrections), max(map(abs, misses)))


def _trust(point: CurvePoint) -> float:
    """How much of its distance from the model is believed: 1 for an exact point, towards 0 for an uncertain one."""
    return _MODEL_ERROR**2 / (_MODEL_ERROR**2 + point.relative_error**2)


def _least_squares(terms: tuple[_Term, ...], points: Sequence[CurvePoint]) -> list[float]:
    """Non-negative coefficients (the first one above 0) that minimise the weighted squared relative error of n/O(n).

    There are at most two terms, so every subset of them is tried.
    """
    rows = [
        [
            math.sqrt(point.weight) * point.rate / point.nodes * value
            for value in (1.0, *(t(point.nodes) for t in terms))
        ]
        for point in points
    ]
    goals = [math.sqrt(point.weight) for point in points]
    best, least = [min(point.nodes / point.rate for point in points), *[0.0] * len(terms)], math.inf
    for size in range(len(terms) + 1):
        for chosen in combinations(range(1, len(terms) + 1), size):
            columns = (0, *chosen)
            solution = _solve([[row[column] for column in columns] for row in rows], goals)
            if solution is None or solution[0] <= 0 or min(solution) < 0:
                continue
            fitted = [sum(row[column] * value for column, value in zip(columns, solution, strict=True)) for row in rows]
            misfit = sum((value - goal) ** 2 for value, goal in zip(fitted, goals, strict=True))
            if misfit < least * (1 - 1e-9):
                best, least = [0.0] * (len(terms) + 1), misfit
                for column, value in zip(columns, solution, strict=True):
                    best[column] = value
    return best


def _solve(rows: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float] | None:
    """Solution of a small least-squares problem by its scaled normal equations; None if the columns are dependent."""
    count = len(rows[0])
    norms = [math.sqrt(sum(row[i] ** 2 for row in rows)) for i in range(count)]
    if min(norms) <= 0:
        return None
    table = [
        [sum(row[i] * row[j] for row in rows) / (norms[i] * norms[j]) for j in range(count)]
        + [sum(row[i] * goal for row, goal in zip(rows, goals, strict=True)) / norms[i]]
        for i in range(count)
    ]
    for i in range(count):
        if abs(table[i][i]) < _DEPENDENT:
            return None
        for below in range(count):
            if below != i:
                factor = table[below][i] / table[i][i]
                table[below] = [value - factor * base for value, base in zip(table[below], table[i], strict=True)]
    return [table[i][count] / table[i][i] / norms[i] for i in range(count)]


def _cross_validation_error(name: str, points: Sequence[CurvePoint]) -> float:
    """Mean error (as a log) of inner points that are predicted from all other points; at most _MAX_FOLDS of them."""
    errors = []
    for index in range(1, len(points) - 1, 1 + (len(points) - 3) // _MAX_FOLDS):
        fit = _fit(name, [*points[:index], *points[index + 1 :]])
        errors.append(abs(math.log(fit.rate(points[index].nodes) / points[index].rate)))
    return sum(errors) / len(errors)
