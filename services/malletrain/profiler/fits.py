"""Shapes of scaling curves, fitted to measured points.

With a fixed batch per node, the time of a step on n nodes is n·batch/O(n). Two models of it are straight sums of known
terms with coefficients that cannot be negative:

- *Amdahl*: `n/O(n) = a + c·(n - 1)`. A serial share does not shrink with nodes.
- *Ring*: `n/O(n) = a + b·(n - 1)/n + c·(n - 1)`. Compute, and a ring all-reduce: each node sends 2·(n - 1)/n times the
  gradients (bandwidth), in 2·(n - 1) messages (latency). Hidden communication shows as b and c near 0.

*Monotone* interpolation, straight in log-log space, assumes nothing and is what is left for curves with a knee.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from malletrain.profiler.knots import LEAST_RATE, Knot

FEWEST_POINTS = 3
"""Measured scales before a shape is fitted at all."""

_Term = Callable[[int], float]
_MODELS: dict[str, tuple[_Term, ...]] = {
    "amdahl": (lambda n: float(n - 1),),
    "ring": (lambda n: (n - 1) / n, lambda n: float(n - 1)),
}
MONOTONE = "monotone"
# A model is preferred to mere interpolation unless it predicts left-out points worse by more than this.
_BENEFIT = 0.01
_MOST_LEFT_OUT = 5
# What remains of a scaled column that the others explain.
_DEPENDENT = 1e-9
# How far a slope is continued, in log nodes.
_FAR = 10.0
# How well a model is trusted at a measured scale, relative: a point with a larger error is drawn towards the model.
_MODEL_ERROR = 0.05


@dataclass(frozen=True)
class Fit:
    """A shape through measured points.

    Attributes:
        name: "amdahl", "ring" or "monotone".
        model: Samples/s at a scale in nodes, before it is corrected at the measured scales.
        logs: Log nodes and log of the correction factor, ascending.
        misfit: How far the model itself misses the worst of the points, as a log; 0 for mere interpolation.
    """

    name: str
    model: Callable[[int], float]
    logs: tuple[tuple[float, float], ...]
    misfit: float = 0.0

    def rate(self, nodes: int) -> float:
        """Samples/s at a scale: the model times its correction, which goes straight in log space."""
        return self.model(nodes) * math.exp(interpolated(math.log(nodes), self.logs))


def interpolated(x: float, knots: Sequence[tuple[float, float]]) -> float:
    """Straight lines between knots, constant outside them; at least one knot."""
    index = bisect_left([knot[0] for knot in knots], x)
    if index == 0:
        return knots[0][1]
    if index == len(knots):
        return knots[-1][1]
    (x0, y0), (x1, y1) = knots[index - 1], knots[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def all_fits(points: Sequence[Knot]) -> tuple[Fit, ...]:
    """Every shape that can be fitted.

    Args:
        points: Measured, nodes strictly ascending, rates at least LEAST_RATE.

    Returns:
        Models first, monotone interpolation last; none below two points.
    """
    if len(points) < 2:
        return ()
    return (*(_modelled(name, points) for name in _MODELS), _monotone(points))


def best_fit(points: Sequence[Knot]) -> Fit | None:
    """The shape that predicts points best which it has not seen (leave one out, the ends apart).

    Args:
        points: As for `all_fits`.

    Returns:
        None with fewer than FEWEST_POINTS points.
    """
    if len(points) < FEWEST_POINTS:
        return None
    scores = {name: _left_out(name, points) for name in (*_MODELS, MONOTONE)}
    name = min(scores, key=lambda name: scores[name] + (_BENEFIT if name == MONOTONE else 0.0))
    return _fitted(name, points)


def beyond(nodes: int, last: Knot, rate_before: float) -> float:
    """FLEET's Eq. 1: samples/s beyond the largest measured scale.

    Efficiency per node goes on falling by the same factor with each node:
    `O(m) = m · O(M)/M · (O(M)/O(M-1) · (M-1)/M)^(m-M)`. Never more than linear, and never less than at M itself, which
    a job can always do with the other nodes left idle.

    Args:
        nodes: m, at least `last.nodes`.
        last: The largest measured point, M.
        rate_before: Samples/s at M-1 nodes; at M = 1 it has no meaning and the curve goes on linearly.
    """
    linear = last.rate * nodes / last.nodes
    if last.nodes == 1 or rate_before < LEAST_RATE:
        return linear
    factor = min(1.0, last.rate / rate_before * (last.nodes - 1) / last.nodes)
    return max(last.rate, linear * math.pow(factor, nodes - last.nodes))


def _fitted(name: str, points: Sequence[Knot]) -> Fit:
    return _monotone(points) if name == MONOTONE else _modelled(name, points)


def _monotone(points: Sequence[Knot]) -> Fit:
    logs = [(math.log(knot.nodes), math.log(knot.rate)) for knot in points]
    # Outside, the outermost slopes go on, neither falling nor above linear.
    first, last = _continued(logs[1], logs[0], 0.0), _continued(logs[-2], logs[-1], logs[-1][0] + _FAR)
    return Fit(MONOTONE, lambda _: 1.0, (*first, *logs, *last))


def _continued(before: tuple[float, float], end: tuple[float, float], x: float) -> tuple[tuple[float, float], ...]:
    if x == end[0]:
        return ()
    slope = min(1.0, max(0.0, (end[1] - before[1]) / (end[0] - before[0])))
    return ((x, end[1] + slope * (x - end[0])),)


def _modelled(name: str, points: Sequence[Knot]) -> Fit:
    terms = _MODELS[name]
    coefficients = _least_squares(terms, points)

    def model(nodes: int) -> float:
        return nodes / (coefficients[0] + sum(c * term(nodes) for c, term in zip(coefficients[1:], terms, strict=True)))

    logs = tuple((math.log(knot.nodes), _trust(knot) * math.log(knot.rate / model(knot.nodes))) for knot in points)
    misfit = max(abs(math.log(knot.rate / model(knot.nodes))) for knot in points)
    return Fit(name, model, logs, misfit)


def _trust(knot: Knot) -> float:
    return _MODEL_ERROR**2 / (_MODEL_ERROR**2 + knot.error**2)


def _least_squares(terms: tuple[_Term, ...], points: Sequence[Knot]) -> list[float]:
    """Coefficients of at least 0 (the first above 0) with the least weighted squared relative error of n/O(n)."""
    rows = [
        [math.sqrt(knot.weight) * knot.rate / knot.nodes * value for value in (1.0, *(t(knot.nodes) for t in terms))]
        for knot in points
    ]
    goals = [math.sqrt(knot.weight) for knot in points]
    best, least = [min(knot.nodes / knot.rate for knot in points), *[0.0] * len(terms)], math.inf
    for size in range(len(terms) + 1):
        for chosen in combinations(range(1, len(terms) + 1), size):
            kept = (0, *chosen)
            found = _solved([[row[place] for place in kept] for row in rows], goals)
            if found is None or found[0] <= 0 or min(found) < 0:
                continue
            fitted = [sum(row[place] * value for place, value in zip(kept, found, strict=True)) for row in rows]
            misfit = sum((value - goal) ** 2 for value, goal in zip(fitted, goals, strict=True))
            if misfit < least * (1 - 1e-9):
                best, least = [0.0] * (len(terms) + 1), misfit
                for place, value in zip(kept, found, strict=True):
                    best[place] = value
    return best


def _solved(rows: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float] | None:
    """Least squares of a few columns by their normal equations, scaled; None where the columns are dependent."""
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


def _left_out(name: str, points: Sequence[Knot]) -> float:
    """Mean relative error at inner points (some of them, where there are many), each predicted from the others."""
    errors = []
    for index in range(1, len(points) - 1, 1 + (len(points) - 3) // _MOST_LEFT_OUT):
        fit = _fitted(name, [*points[:index], *points[index + 1 :]])
        errors.append(abs(math.log(fit.rate(points[index].nodes) / points[index].rate)))
    return sum(errors) / len(errors)
