"""Whose curve is profiled, and at which scales: `ProfilingPolicy` by what is known of the curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from malletrain.model.scaling import permitted_scales
from malletrain.profiler.curve import DECLARED_ERROR, single_node_rate
from malletrain.profiler.curve_estimator import CurveEstimator, JobDeclaration
from malletrain.profiler.plan_sensitivity import best_scale, rest_values
from malletrain.profiler.points import CurvePoint
from malletrain.profiler.scale_selection import (
    PlannedScale,
    ScaleStrategy,
    fleet_scales,
    is_usable,
    next_adaptive,
    next_listed,
)
from malletrain.profiler.settings import ProfilerSettings, ProfilingMode


class CurveBasedPolicy:
    """The policy at one moment; see `profile_scheduler.ProfilingPolicy` for its methods."""

    def __init__(self, curves: CurveEstimator, settings: ProfilerSettings, planned: Sequence[str], now: float) -> None:
        """Read the curves as they are now.

        Args:
            curves: The curves of all jobs.
            settings: Strategy and errors.
            planned: Jobs that take part in plans.
            now: Seconds since the epoch.
        """
        self._curves = curves
        self._settings = settings
        self._planned = planned
        self._now = now

    def wants_profile(self, job_id: str) -> bool:
        """True for `always`, and for `auto` where no usable curve is known."""
        declared = self._curves.declaration(job_id)
        if declared is None:
            return False
        mode = declared.mode or self._settings.default_mode
        return mode is ProfilingMode.ALWAYS or (mode is ProfilingMode.AUTO and not self._is_usable(declared))

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        """The last of FLEET's scales with that strategy, else the largest permitted scale."""
        del job_id
        return self._fleet(scales)[-1] if self._settings.strategy is ScaleStrategy.FLEET else scales[-1]

    def measured_at(self, job_id: str, nodes: int) -> CurvePoint | None:
        """The job's own point at a scale."""
        return self._curves.measured_at(job_id, nodes)

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        """The next scale by the configured strategy."""
        declared = self._curves.declaration(job_id)
        if declared is None:
            return None
        scales = [scale for scale in _scales(declared) if scale <= max(top, present)]
        if self._settings.strategy is ScaleStrategy.EVERY:
            return next_listed(scales, present, visited)
        if self._settings.strategy is ScaleStrategy.FLEET:
            return next_listed(self._fleet(scales), present, visited)
        known = self._curves.known_points(job_id, self._now)
        planned_scale = self._planned_scale(declared, pool)
        return next_adaptive(scales, present, known, visited, self._settings.curve_error, planned_scale)

    def _fleet(self, scales: Sequence[int]) -> list[int]:
        rates = [single_node_rate(profile.points) for profile in self._curves.profiles()]
        return fleet_scales(rates, self._settings.fleet_nodes, scales)

    def _is_usable(self, declared: JobDeclaration) -> bool:
        # A user who declares a curve does not ask for a profile, so declared points count as precise enough.
        error = min(DECLARED_ERROR, self._settings.target_error)
        curve = [replace(point, relative_error=error) for point in declared.curve]
        known = [*curve, *self._curves.known_points(declared.job_id, self._now)]
        return is_usable(declared.min_nodes, declared.max_nodes, known, self._settings.target_error)

    def _planned_scale(self, declared: JobDeclaration, pool: int) -> PlannedScale:
        scales = _scales(declared)
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
        scales = [scale for scale in _scales(declared) if scale <= pool]
        for scale, rate in zip(scales, _rates(profile.points, scales), strict=True):
            values[scale] = declared.weight * rate
        return values


def _scales(declared: JobDeclaration) -> Sequence[int]:
    return permitted_scales(declared.min_nodes, declared.max_nodes, declared.permitted_nodes)


def _rates(points: Sequence[CurvePoint], scales: Sequence[int]) -> list[float]:
    nodes, rates = [0, *(point.nodes for point in points)], [0.0, *(point.rate for point in points)]
    found: list[float] = np.interp(scales, nodes, rates).tolist()
    return found
