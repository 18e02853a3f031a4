"""No schedule is faster than this: a linear program over the time that each member spends at each number of GPUs.

    minimise T  with  sum_m x[i, m] * rate_i(m) = work_i,  sum_m x[i, m] <= T,  sum_i,m m * x[i, m] <= M * T,  x >= 0

For a given T a member needs T * c_i(work_i / T) GPU-seconds, where c_i is the lower convex hull of the GPUs over the
rates they give, the origin included. So T is the least value at which the hulls at work_i / T add up to M. They are
convex and piecewise linear in 1 / T, and the solution is found exactly, from corner to corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import rate_table

_Corner = tuple[float, float]
"""A rate in samples/s and the fewest GPUs, as an average over time, that give it."""


def lower_bound(problem: FleetProblem) -> float:
    """Seconds below which no schedule trains the ensemble, even without checkpoints."""
    table, feed = rate_table(problem), problem.feed
    works = problem.samples()
    hulls = [_hull([min(rate, feed) for rate in row]) for row in table.rows]
    # The GPUs that all members together need at 1/T = 0 are 0; each corner makes their growth steeper.
    most = min(hull[-1][0] / work for hull, work in zip(hulls, works, strict=True))
    corners, slope = [], 0.0
    for hull, work in zip(hulls, works, strict=True):
        steepness = [work * (more - few) / (fast - slow) for (slow, few), (fast, more) in pairwise(hull)]
        slope += steepness[0]
        corners += [
            (rate / work, after - before)
            for (rate, _), (before, after) in zip(hull[1:-1], pairwise(steepness), strict=True)
        ]
    needed, inverse = 0.0, 0.0
    for place, bend in sorted(corners):
        reached = min(place, most)
        if needed + slope * (reached - inverse) >= problem.gpus or reached == most:
            break
        needed += slope * (reached - inverse)
        inverse, slope = place, slope + bend
    return 1 / min(most, inverse + (problem.gpus - needed) / slope)


def above_bound(problem: FleetProblem) -> float:
    """Seconds that are not below the lower bound, and are quickly computed.

    A list on one GPU each is a schedule, and takes no longer than the mean load of a GPU and the longest member: until
    the last one begins, every GPU trains (Graham 1966).
    """
    table, feed = rate_table(problem), problem.feed
    seconds = [work / min(row[0], feed) for work, row in zip(problem.samples(), table.rows, strict=True)]
    return sum(seconds) / problem.gpus + max(seconds)


def _hull(rates: Sequence[float]) -> list[_Corner]:
    """Corners of the lower convex hull of GPUs over rates, from the origin to the largest rate."""
    hull: list[_Corner] = [(0.0, 0.0)]
    fastest = 0.0
    for gpus, rate in enumerate(rates, 1):
        if rate <= fastest:
            continue
        fastest = rate
        while len(hull) > 1 and not _bends_up(hull[-2], hull[-1], (rate, gpus)):
            hull.pop()
        hull.append((rate, float(gpus)))
    return hull


def _bends_up(first: _Corner, second: _Corner, third: _Corner) -> bool:
    before = (second[1] - first[1]) * (third[0] - second[0])
    return before < (third[1] - second[1]) * (second[0] - first[0])
