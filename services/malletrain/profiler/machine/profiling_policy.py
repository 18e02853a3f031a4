"""Whose curve is profiled, and at which scales: `ProfilingPolicy` by what is known of the curves.

An uncertain curve is measured where it matters for the plan. Without rescale costs, the best division of P nodes
between a job with curve O and weight w and all other jobs is the n that maximises w·O(n) + V(P - n). V(m) is the most
that the others achieve on m nodes (a knapsack problem, solved once for all m).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from malletrain.profiler.machine.curve import DECLARED_ERROR, single_node_rate
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration
from malletrain.profiler.machine.options import ProfilerOptions, ProfilingMode
from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.machine.scale_selection import (
    PlannedScale,
    ScaleStrategy,
    fleet_scales,
    is_usable,
    next_adaptive,
    next_listed,
)

Floats = NDArray[np.float64]


class CurveBasedPolicy:
    """The policy at one moment; see `profile_scheduler.ProfilingPolicy` for its methods."""

    def __init__(self, curves: CurveEstimator, options: ProfilerOptions, planned: Sequence[str], now: float) -> None:
        """Read the curves as they are now.

        Args:
            curves: The curves of all jobs.
            options: Strategy and errors.
            planned: Jobs that take part in plans.
            now: Seconds since the epoch.
        """
        self._curves = curves
        self._options = options
        self._planned = planned
        self._now = now

    def wants_profile(self, job_id: str) -> bool:
        """True for `always`, and for `auto` where no usable curve is known."""
        declared = self._curves.declaration(job_id)
        if declared is None:
            return False
        mode = declared.mode or self._options.default_mode
        return mode is ProfilingMode.ALWAYS or (mode is ProfilingMode.AUTO and not self._is_usable(declared))

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        """The last of FLEET's scales with that strategy, else the largest permitted scale."""
        del job_id
        return self._fleet(scales)[-1] if self._options.strategy is ScaleStrategy.FLEET else scales[-1]

    def measured_at(self, job_id: str, nodes: int) -> CurvePoint | None:
        """The job's own point at a scale."""
        return self._curves.measured_at(job_id, nodes)

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        """The next scale by the configured strategy."""
        declared = self._curves.declaration(job_id)
        if declared is None:
            return None
        scales = [scale for scale in declared.scales if scale <= max(top, present)]
        if self._options.strategy is ScaleStrategy.EVERY:
            return next_listed(scales, present, visited)
        if self._options.strategy is ScaleStrategy.FLEET:
            return next_listed(self._fleet(scales), present, visited)
        known = self._curves.known_points(job_id, self._now)
        planned_scale = self._planned_scale(declared, pool)
        return next_adaptive(scales, present, known, visited, self._options.curve_error, planned_scale)

    def _fleet(self, scales: Sequence[int]) -> list[int]:
        rates = [single_node_rate(profile.points) for profile in self._curves.profiles()]
        return fleet_scales(rates, self._options.fleet_nodes, scales)

    def _is_usable(self, declared: JobDeclaration) -> bool:
        # A user who declares a curve does not ask for a profile, so declared points count as precise enough.
        error = min(DECLARED_ERROR, self._options.target_error)
        curve = [replace(point, relative_error=error) for point in declared.curve]
        known = [*curve, *self._curves.known_points(declared.job_id, self._now)]
        return is_usable(declared.min_nodes, declared.max_nodes, known, self._options.target_error)

    def _planned_scale(self, declared: JobDeclaration, pool: int) -> PlannedScale:
        scales = declared.scales
        others = [self._values(other, pool) for other in self._planned if other != declared.job_id]
        rest = rest_values(others, pool)

        def planned_scale(rate: Callable[[int], float]) -> int:
            return best_scale(lambda nodes: declared.weight * rate(nodes), scales, rest)

        return planned_scale

    def _values(self, job_id: str, pool: int) -> list[float]:
        """A job's weighted rate on 0, 1, 2.. nodes; minus infinity where it may not run."""
        declared, profile = self._curves.declaration(job_id), self._curves.profile(job_id)
        if declared is None or profile is None:
            return [0.0]
        values = [0.0, *[-np.inf] * pool]
        scales = [scale for scale in declared.scales if scale <= pool]
        for scale, rate in zip(scales, _rates(profile.points, scales), strict=True):
            values[scale] = declared.weight * rate
        return values


def _rates(points: Sequence[CurvePoint], scales: Sequence[int]) -> list[float]:
    nodes, rates = [0, *(point.nodes for point in points)], [0.0, *(point.rate for point in points)]
    interpolated: list[float] = np.interp(scales, nodes, rates).tolist()
    return interpolated


def rest_values(others: Sequence[Sequence[float]], pool: int) -> Floats:
    """V: the most that the other jobs achieve together on 0, 1, 2.. nodes.

    Args:
        others: For each job its weighted rate on 0, 1, 2.. nodes; minus infinity at scales that are not permitted.
        pool: Number of nodes P.

    Returns:
        Array of length P + 1, never falling, since nodes may stay idle.
    """
    best = np.zeros(pool + 1)
    for values in others:
        grown = best.copy()
        for nodes, value in enumerate(values[: pool + 1]):
            if value > -np.inf:
                np.maximum(grown[nodes:], best[: pool + 1 - nodes] + value, out=grown[nodes:])
        best = grown
    return np.maximum.accumulate(best)


def best_scale(value: Callable[[int], float], scales: Sequence[int], rest: Floats) -> int:
    """The scale that maximises the sum of a job's value and that of all others: one of `scales` or 0.

    Of equally good scales the smallest is taken.

    Args:
        value: The job's weighted rate at a scale in nodes.
        scales: Permitted scales in nodes.
        rest: V, as returned by `rest_values`.
    """
    pool = len(rest) - 1
    best, most = 0, float(rest[pool])
    for scale in scales:
        if scale <= pool and (total := value(scale) + float(rest[pool - scale])) > most * (1 + 1e-9):
            best, most = scale, total
    return best
