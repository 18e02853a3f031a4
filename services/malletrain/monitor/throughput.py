"""Throughput per scale, from the steady steps between rescales.

A visit is a stretch of steps at one scale. Its first step holds the rescale and is left out, and so are the warm-up
steps and seconds that follow. What remains is estimated robustly, and visits to the same scale are merged, the newer
one outweighing the older.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from malletrain.monitor.confidence import UNKNOWN, pooled_error, relative_error
from malletrain.monitor.records import Step
from malletrain.monitor.settings import MonitorSettings

_SIGMA_PER_MAD = 1.4826
# Steps as alike as this are never outliers of each other, however small the spread of the others.
_LEAST_RELATIVE_FENCE = 0.25
# What the visits before may weigh against a very short visit, in steps: damps the noise of a handful of steps.
_OLD_WEIGHT = 8.0


@dataclass(frozen=True, slots=True)
class Point:
    """Throughput at one scale.

    Attributes:
        nodes: Scale in nodes.
        rate: Samples per second.
        weight: What it weighs against a new visit, in steps.
        steps: Steps that it rests on.
        unix_seconds: When the newest of them was recorded.
        relative_error: Half-width of the rate's 95 % confidence interval, relative to it.
    """

    nodes: int
    rate: float
    weight: float
    steps: int
    unix_seconds: float
    relative_error: float = UNKNOWN


def robust_rate(steps: Sequence[tuple[float, int]], fence: float, max_outlier_share: float) -> float | None:
    """Samples per second of a series of steps, rare hiccups left out.

    The samples of all steps over the time of all steps, so that ordinary costs of a step count in full. Left out are
    steps whose time per sample is further than `fence` standard deviations (estimated by the median absolute
    deviation) from the median: a waiting data loader, a checkpoint. Where more than `max_outlier_share` of the steps
    are such, they are no hiccups but the way the job runs (a prefetching loader makes every fourth step slow, say),
    and all steps count.

    Args:
        steps: Seconds (at least 0) and samples (above 0) of each.
        fence: Width of what is ordinary, in standard deviations to each side.
        max_outlier_share: Largest share of steps that may be left out.

    Returns:
        The rate; None without steps or where they took no time at all.
    """
    kept = without_hiccups(steps, fence, max_outlier_share)
    total_seconds = sum(seconds for seconds, _ in kept)
    return sum(samples for _, samples in kept) / total_seconds if total_seconds > 0 else None


def without_hiccups(
    steps: Sequence[tuple[float, int]], fence: float, max_outlier_share: float
) -> list[tuple[float, int]]:
    """The steps that count; see `robust_rate`."""
    if not steps:
        return []
    costs = [seconds / samples for seconds, samples in steps]
    median = statistics.median(costs)
    spread = _SIGMA_PER_MAD * statistics.median([abs(cost - median) for cost in costs])
    width = max(fence * spread, _LEAST_RELATIVE_FENCE * median)
    kept = [step for step, cost in zip(steps, costs, strict=True) if abs(cost - median) <= width]
    if len(steps) - len(kept) > max_outlier_share * len(steps):
        return list(steps)
    return kept


class ThroughputMeter:
    """Throughput of one job at every scale it has been at.

    Memory: one window of steps for the present visit, one Point for each scale.
    """

    def __init__(self, settings: MonitorSettings, points: Iterable[Point] = ()) -> None:
        """Go on from the points of before."""
        self._settings = settings
        self._points = {point.nodes: point for point in points}
        self._nodes = 0
        self._begin_visit(0.0)

    def add(self, step: Step) -> None:
        """Take the next step of the job into account."""
        if step.to_nodes != self._nodes or step.new_reporter or step.samples_lost or step.seconds < 0:
            self.close_visit()
            self._nodes = step.to_nodes
            self._begin_visit(step.unix_seconds)
            return
        self._seen += 1
        warm = self._seen > self._settings.warmup_steps
        if not step.steady:
            self._carried_seconds = 0.0
        elif warm and step.unix_seconds - self._begin >= self._settings.warmup_seconds:
            self._keep(step)

    def points(self) -> tuple[Point, ...]:
        """What is known now, by nodes ascending."""
        present = self._present_point()
        points = self._points if present is None else {**self._points, present.nodes: present}
        return tuple(points[nodes] for nodes in sorted(points))

    def rate(self, nodes: int) -> float:
        """Samples per second at a scale; 0 while unknown."""
        point = self._present_point() if nodes == self._nodes else None
        point = point or self._points.get(nodes)
        return point.rate if point else 0.0

    def close_visit(self) -> None:
        """Merge the present visit into its scale's point and forget its single steps."""
        present = self._present_point()
        if present is not None:
            self._points[present.nodes] = present
        self._nodes = 0
        self._begin_visit(0.0)

    def _begin_visit(self, unix_seconds: float) -> None:
        self._begin = self._newest = unix_seconds
        self._seen = 0
        self._kept = 0
        self._carried_seconds = 0.0
        self._window: deque[tuple[float, int]] = deque(maxlen=self._settings.window_steps)

    def _keep(self, step: Step) -> None:
        # A report without samples is time that the next batch took.
        seconds = self._carried_seconds + step.seconds
        if step.samples == 0:
            self._carried_seconds = seconds
            return
        self._carried_seconds = 0.0
        self._window.append((seconds, step.samples))
        self._kept += 1
        self._newest = step.unix_seconds

    def _present_point(self) -> Point | None:
        if len(self._window) < self._settings.min_steps:
            return None
        steps = list(self._window)
        rate = robust_rate(steps, self._settings.outlier_fence, self._settings.max_outlier_share)
        if rate is None:
            return None
        weight = float(len(self._window))
        kept = without_hiccups(steps, self._settings.outlier_fence, self._settings.max_outlier_share)
        present = Point(self._nodes, rate, weight, self._kept, self._newest, relative_error(kept))
        before = self._points.get(self._nodes)
        return present if before is None else _merge(before, present, float(self._settings.window_steps))


def _merge(before: Point, present: Point, most_weight: float) -> Point:
    # Halved at every visit, and never above half of the present one unless that is very short: the newer outweighs.
    old_weight = min(before.weight / 2, max(present.weight / 2, _OLD_WEIGHT))
    weight = present.weight + old_weight
    # Means of the time per sample, not of the rate: that is what adds up.
    cost = (present.weight / present.rate + old_weight / before.rate) / weight
    error = pooled_error(present.relative_error, present.weight, before.relative_error, old_weight)
    steps = before.steps + present.steps
    return Point(present.nodes, 1 / cost, min(weight, most_weight), steps, present.unix_seconds, error)
