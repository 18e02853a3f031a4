"""Throughput at each scale with its confidence interval, measured from the steady steps between rescales. Pure.

A visit is a series of steps at one scale. Its first step contains the rescale and is left out, and so are the warm-up
steps and seconds after it. The rest is estimated robustly. Visits to the same scale are merged; the newer one has the
larger weight.

The confidence interval comes from means of consecutive steps (method of batch means). Steps of a training are not
independent: a prefetching data loader makes every fourth one slow, a processor raises its clock for a while. The spread
of single steps therefore misjudges the error. Means of series of steps are nearly independent once a series is longer
than such patterns; their spread gives the interval by Student's t distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cache
from typing import NamedTuple

from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.options import MonitorOptions
from malletrain.monitor.machine.progress import TrainingStep

UNKNOWN_ERROR = 1.0
"""Relative error if there are too few steps to estimate it."""

_SIGMA_PER_MAD = 1.4826
_MIN_RELATIVE_FENCE = 0.25
"""Steps within this relative distance of the median are never outliers, however small the spread of the others."""
_OLD_WEIGHT = 8.0
"""Weight in steps that earlier visits may have against a very short new one. It damps the noise of a few steps."""
_MAX_BATCHES = 16
_MIN_BATCHES = 4
_LEVEL = 0.95
_OUTDATED_BY = 8

MAX_SPAN_POINTS = 32
"""Of a job; beyond that, the ones go that were measured longest ago."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint(ScalingPoint):
    """Throughput measured at one scale.

    Attributes:
        weight: Its weight in steps when it is merged with a new visit.
        steps: Number of steps that it is measured from.
        unix_seconds: When the newest of them ended, in seconds since the epoch.
        relative_error: Half-width of the rate's 95 % confidence interval, relative to the rate.
    """

    weight: float
    steps: int
    unix_seconds: float
    relative_error: float = UNKNOWN_ERROR


def robust_rate(steps: Sequence[tuple[float, int]], fence: float, max_outlier_share: float) -> float | None:
    """Throughput of a series of steps in samples/s, without rare outliers.

    The samples of all steps divided by their time, so that the regular costs of a step count in full. Steps are
    outliers if their time per sample differs from the median by more than `fence` standard deviations (estimated by
    the median absolute deviation): a data loader that stalls, a checkpoint. If more than `max_outlier_share` of the
    steps differ so much, that is how the job runs (with a prefetching loader every fourth step may be slow), and all
    steps count.

    Args:
        steps: Seconds (at least 0) and samples (above 0) of each step.
        fence: Largest distance from the median, in standard deviations.
        max_outlier_share: Largest share of steps that may be left out.

    Returns:
        The rate; None without steps, or if they took hardly any time or nearly for ever: no number is so large.
    """
    return _rate(without_outliers(steps, fence, max_outlier_share))


def _rate(steps: Sequence[tuple[float, int]]) -> float | None:
    total_seconds = sum(seconds for seconds, _ in steps)
    rate = sum(samples for _, samples in steps) / total_seconds if total_seconds > 0 else 0.0
    return rate if 0 < rate < math.inf else None


def without_outliers(
    steps: Sequence[tuple[float, int]], fence: float, max_outlier_share: float
) -> list[tuple[float, int]]:
    """The steps that count; see `robust_rate`."""
    if not steps:
        return []
    costs = [seconds / samples for seconds, samples in steps]
    median = statistics.median(costs)
    spread = _SIGMA_PER_MAD * statistics.median([abs(cost - median) for cost in costs])
    width = max(fence * spread, _MIN_RELATIVE_FENCE * median)
    inliers = [step for step, cost in zip(steps, costs, strict=True) if abs(cost - median) <= width]
    if len(steps) - len(inliers) > max_outlier_share * len(steps):
        return list(steps)
    return inliers


def relative_error(steps: Sequence[tuple[float, int]]) -> float:
    """Half-width of the 95 % confidence interval of the time per sample, relative to it.

    Args:
        steps: Seconds and samples (above 0) of consecutive steps, outliers left out.

    Returns:
        At least 0; UNKNOWN_ERROR with fewer than four steps or if they took no time.
    """
    batches = min(_MAX_BATCHES, len(steps))
    if batches < _MIN_BATCHES:
        return UNKNOWN_ERROR
    length = len(steps) // batches
    # The oldest steps, which do not fill a batch, are left out: they are the most likely to be warm-up.
    first = len(steps) - batches * length
    costs = [_cost(steps[begin : begin + length]) for begin in range(first, len(steps), length)]
    mean = statistics.fmean(costs)
    if mean <= 0:
        return UNKNOWN_ERROR
    # Not `statistics.stdev`, whose exact fractions take most of the time of an estimate.
    deviation = math.sqrt(math.fsum((cost - mean) ** 2 for cost in costs) / (batches - 1))
    half = student_quantile(0.5 + _LEVEL / 2, batches - 1) * deviation / math.sqrt(batches)
    return min(UNKNOWN_ERROR, half / mean)


def pooled_error(first: float, first_weight: float, second: float, second_weight: float) -> float:
    """Relative error of the weighted mean of two independent values of about the same size."""
    total = first_weight + second_weight
    return math.hypot(first * first_weight, second * second_weight) / total if total > 0 else UNKNOWN_ERROR


@cache
def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t distribution, by its expansion in 1/freedom; within 1 % from 3 degrees of freedom on.

    Args:
        probability: Between 0 and 1.
        freedom: Degrees of freedom, at least 1.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    square = z * z
    terms = (
        z,
        z * (square + 1) / 4,
        z * ((5 * square + 16) * square + 3) / 96,
        z * (((3 * square + 19) * square + 17) * square - 15) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


class JobSpan(NamedTuple):
    """How near each other the nodes of a job are.

    Attributes:
        nodes: Their number.
        shared_levels: In one group of how many levels they are, from the outermost; None: not known.
    """

    nodes: int
    shared_levels: int | None


@dataclass(frozen=True, slots=True)
class SpanPoint:
    """Throughput measured where nodes were equally near each other.

    Attributes:
        shared_levels: In one group of how many levels they were, from the outermost.
        point: Number of nodes, throughput, and how well it is known.
    """

    shared_levels: int
    point: MeasuredPoint


@dataclass
class ThroughputMeter:
    """Throughput of one job at every scale that it has had.

    Memory: a window of steps of the present visit, one point for each scale, and MAX_SPAN_POINTS for each scale and
    nearness of the nodes. A visit belongs to one nearness, or to none: where that is not known, or is told of another
    number of nodes, it counts for the scale only.

    Attributes:
        options: Limits.
        earlier: Points that were measured before.
        spans: The same by how near the nodes were.
    """

    options: MonitorOptions
    earlier: InitVar[Iterable[MeasuredPoint]] = ()
    spans: InitVar[Iterable[SpanPoint]] = ()
    _points: dict[int, MeasuredPoint] = field(init=False)
    _nodes: int = field(init=False, default=0)
    _begin: float = field(init=False)
    _newest: float = field(init=False)
    _seen: int = field(init=False)
    _kept: int = field(init=False)
    _carried_seconds: float = field(init=False)
    _window: list[tuple[float, int]] = field(init=False)
    _estimate: MeasuredPoint | None = field(init=False)
    _estimated_at: int = field(init=False)
    _spans: dict[tuple[int, int], MeasuredPoint] = field(init=False, default_factory=dict)
    _placed: JobSpan = field(init=False, default=JobSpan(0, None))
    _shared: int | None = field(init=False, default=None)
    _unmerged: MeasuredPoint | None = field(init=False, default=None)

    def __post_init__(self, earlier: Iterable[MeasuredPoint], spans: Iterable[SpanPoint]) -> None:
        self._points = {point.nodes: point for point in earlier}
        self._spans = {(one.point.nodes, one.shared_levels): one.point for one in spans}
        self._begin_visit(0.0)

    def add(self, step: TrainingStep) -> None:
        """Take the next step of the job into account."""
        if step.to_nodes != self._nodes or step.new_reporter or step.samples_lost or step.seconds < 0:
            self.end_visit()
            self._nodes = step.to_nodes
            self._begin_visit(step.unix_seconds)
            return
        self._seen += 1
        warm = self._seen > self.options.warmup_steps
        if not step.steady:
            self._carried_seconds = 0.0
        elif warm and step.unix_seconds - self._begin >= self.options.warmup_seconds:
            self._keep_step(step)

    def extend(self, seconds: Sequence[float], samples: Sequence[int], unix_seconds: Sequence[float]) -> None:
        """Take the next steps of the job into account, which are all steady, have samples and follow one like them.

        Args:
            seconds: Their durations in seconds.
            samples: Samples of each, above 0.
            unix_seconds: When each ended, in seconds since the epoch; ascending.
        """
        cold = max(0, self.options.warmup_steps - self._seen)
        self._seen += len(seconds)
        while cold < len(seconds) and unix_seconds[cold] - self._begin < self.options.warmup_seconds:
            cold += 1
        if cold >= len(seconds):
            return
        first = max(cold, len(seconds) - self.options.window_steps)
        self._window.extend(zip(seconds[first:], samples[first:], strict=True))
        del self._window[: -self.options.window_steps]
        self._kept += len(seconds) - cold
        self._newest = unix_seconds[-1]

    @property
    def steps(self) -> Sequence[tuple[float, int]]:
        """Seconds and samples of the newest steps of the present visit that count, oldest first."""
        return self._window

    @property
    def known_points(self) -> tuple[MeasuredPoint, ...]:
        """The points as they were estimated last, by nodes ascending: nothing is estimated for this."""
        points = self._points if self._estimate is None else {**self._points, self._nodes: self._estimate}
        return tuple(points[nodes] for nodes in sorted(points))

    @property
    def nodes(self) -> int:
        """Scale of the present visit in nodes; 0: there is none."""
        return self._nodes

    def points(self) -> tuple[MeasuredPoint, ...]:
        """The points, by nodes ascending; the present visit is included."""
        present = self._present_point()
        points = self._points if present is None else {**self._points, present.nodes: present}
        return tuple(points[nodes] for nodes in sorted(points))

    def recent_points(self) -> tuple[MeasuredPoint, ...]:
        """The same, where the point of the present visit may lack its newest steps, an eighth of those that count.

        For the store and those who watch, several times a second: estimating a point is what costs most here.
        """
        return self.known_points if self._is_recent() else self.points()

    def recent_rate(self, nodes: int) -> float:
        """Throughput at a scale as of `recent_points`, in samples/s; 0 while unknown."""
        if nodes == self._nodes and self._estimate is not None and self._is_recent():
            return self._estimate.rate
        return self.rate(nodes)

    def _is_recent(self) -> bool:
        fresh, counted = self._kept - self._estimated_at, min(self._estimated_at, self.options.window_steps)
        return fresh <= counted // _OUTDATED_BY

    def place(self, span: JobSpan) -> None:
        """Take in how near each other the job's nodes are now: a visit begins anew."""
        if span != self._placed:
            self.end_visit()  # what came until now belongs to where the job was
            self._placed = span

    def span_points(self) -> tuple[SpanPoint, ...]:
        """Throughput by number of nodes and by how near they were, both ascending, as it was estimated last."""
        spans = self._spans_with_present()
        return tuple(SpanPoint(shared, spans[nodes, shared]) for nodes, shared in sorted(spans))

    def rate(self, nodes: int) -> float:
        """Throughput at a scale in samples/s; 0 while unknown."""
        point = self._present_point() if nodes == self._nodes else None
        point = point or self._points.get(nodes)
        return point.rate if point else 0.0

    def end_visit(self) -> None:
        """Merge the present visit into the point of its scale and forget its steps."""
        present = self._present_point()
        if present is not None:
            self._points[present.nodes] = present
        self._spans = self._spans_with_present()
        self._nodes = 0
        self._begin_visit(0.0)

    def _begin_visit(self, unix_seconds: float) -> None:
        self._begin = unix_seconds
        self._newest = unix_seconds
        self._seen = 0
        self._kept = 0
        self._carried_seconds = 0.0
        self._window = []
        self._estimate = None
        self._unmerged = None
        self._estimated_at = 0
        placed = self._placed
        self._shared = placed.shared_levels if placed.nodes == self._nodes else None

    def _spans_with_present(self) -> dict[tuple[int, int], MeasuredPoint]:
        present = self._unmerged
        if present is None or self._shared is None:
            return self._spans
        key = (present.nodes, self._shared)
        before = self._spans.get(key)
        merged = present if before is None else _merge(before, present, float(self.options.window_steps))
        spans = {**self._spans, key: merged}
        if len(spans) > MAX_SPAN_POINTS:
            del spans[min(spans, key=lambda one: (spans[one].unix_seconds, one))]
        return spans

    def _keep_step(self, step: TrainingStep) -> None:
        # The time of a record without samples belongs to the next batch.
        seconds = self._carried_seconds + step.seconds
        if step.samples == 0:
            self._carried_seconds = seconds
            return
        self._carried_seconds = 0.0
        self._window.append((seconds, step.samples))
        del self._window[: -self.options.window_steps]
        self._kept += 1
        self._newest = step.unix_seconds

    def _present_point(self) -> MeasuredPoint | None:
        if self._estimated_at != self._kept:
            self._estimate, self._estimated_at = self._estimated_point(), self._kept
        return self._estimate

    def _estimated_point(self) -> MeasuredPoint | None:
        self._unmerged = None
        if len(self._window) < self.options.min_steps:
            return None
        inliers = without_outliers(self._window, self.options.outlier_fence, self.options.max_outlier_share)
        rate = _rate(inliers)
        if rate is None:
            return None
        weight = float(len(self._window))
        present = MeasuredPoint(self._nodes, rate, weight, self._kept, self._newest, relative_error(inliers))
        self._unmerged = present
        before = self._points.get(self._nodes)
        return present if before is None else _merge(before, present, float(self.options.window_steps))


def _merge(before: MeasuredPoint, present: MeasuredPoint, max_weight: float) -> MeasuredPoint:
    # The old weight is halved at every visit and at most half of the present one, unless that one is very short.
    old_weight = min(before.weight / 2, max(present.weight / 2, _OLD_WEIGHT))
    weight = present.weight + old_weight
    # The mean of the times per sample, not of the rates: times add up.
    cost = (present.weight / present.rate + old_weight / before.rate) / weight
    error = pooled_error(present.relative_error, present.weight, before.relative_error, old_weight)
    steps = before.steps + present.steps
    return MeasuredPoint(present.nodes, 1 / cost, min(weight, max_weight), steps, present.unix_seconds, error)


def _cost(steps: Sequence[tuple[float, int]]) -> float:
    return sum(seconds for seconds, _ in steps) / sum(samples for _, samples in steps)
