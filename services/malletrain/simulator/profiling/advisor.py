"""MalleTrain in a replay: the production Profiler learns the curves, and the production allocator decides by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from malletrain.allocator.problem.objective import ScaleRates, scale_rates
from malletrain.allocator.problem.scale_pins import ScalePin, pinned_counts
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.model.scaling import ScalingPoint, permitted_scales
from malletrain.monitor.machine.throughput import relative_error, robust_rate, without_outliers
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements, JobProfile
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.machine.points import CurvePoint, CurveSource
from malletrain.profiler.machine.profile_scheduler import ClusterView, JobView, ProfilingState, advance
from malletrain.profiler.machine.profiling_policy import CurveBasedPolicy
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.running_job import RunningJob

_FENCE, _MAX_OUTLIERS = 5.0, 0.1
FULL_WINDOW = 256
"""Number of newest steps of a stay that count."""

_STUDENT = 2.13


@dataclass(frozen=True)
class StepNoise:
    """How the times of steps scatter, and how Monitor reads them.

    Attributes:
        spread: Standard deviation of a step's time, relative to its mean.
        hiccups: Share of steps that take ten times as long.
        warmup_s: Seconds after a rescale that Monitor ignores.
        publish_s: Seconds between two messages of Monitor.
    """

    spread: float = 0.05
    hiccups: float = 0.01
    warmup_s: float = 1.0
    publish_s: float = 1.0


def measured_point(
    nodes: int, rate: float, batch: int, seconds: float, end_s: float, noise: StepNoise, rng: np.random.Generator
) -> CurvePoint | None:
    """The point measured in a time of steady training, step by step through Monitor's own estimator.

    Args:
        nodes: Scale in nodes.
        rate: True throughput at that scale in samples/s.
        batch: Samples per node and step.
        seconds: How long the job has trained there.
        end_s: End of that time, in seconds; the point's age counts from then.
        noise: How the times of steps scatter.
        rng: Source of the noise.

    Returns:
        None with fewer than five steps.
    """
    samples = batch * nodes
    count = int(max(0.0, seconds - noise.warmup_s) * rate / samples)
    if count < 5 or rate <= 0:
        return None
    kept = min(count, FULL_WINDOW)
    times = draw_step_times(kept, noise, rng) * (samples / rate)
    steps = [(float(time), samples) for time in times]
    robust = robust_rate(steps, _FENCE, _MAX_OUTLIERS)
    if robust is None:
        return None
    error = relative_error(without_outliers(steps, _FENCE, _MAX_OUTLIERS))
    return CurvePoint(nodes, robust, count, max(error, 1e-6), end_s)


def approximate_point(
    nodes: int, rate: float, batch: int, seconds: float, end_s: float, noise: StepNoise, rng: np.random.Generator
) -> CurvePoint | None:
    """As `measured_point`, but drawn directly from the distribution of rates: faster, for ordinary running."""
    count = int(max(0.0, seconds - noise.warmup_s) * rate / (batch * nodes))
    if count < 5 or rate <= 0:
        return None
    error = noise.spread / math.sqrt(min(count, FULL_WINDOW))
    return CurvePoint(
        nodes, rate * (1.0 + error * float(rng.standard_normal())), count, max(_STUDENT * error, 1e-6), end_s
    )


def draw_step_times(
    count: int, noise: StepNoise, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Times of `count` steps relative to the undisturbed time, shape (count,): positive, mean 1 apart from hiccups."""
    shape = 1.0 / noise.spread**2 if noise.spread > 0 else 1e12
    times = rng.gamma(shape, 1.0 / shape, count)
    return np.asarray(np.where(rng.random(count) < noise.hiccups, 10.0 * times, times), dtype=np.float64)


def seconds_needed(nodes: int, rate: float, batch: int, noise: StepNoise, least_steps: int, target: float) -> float:
    """Expected time at a scale until Monitor's message shows that it is measured, in seconds."""
    steps = max(least_steps, math.ceil((_STUDENT * noise.spread / target) ** 2), 5)
    seconds = noise.warmup_s + steps * batch * nodes / rate
    return math.ceil(seconds / noise.publish_s) * noise.publish_s


Declare = Callable[[ReplayJob], tuple[ScalingPoint, ...]]
"""The curve that a user declares for a job; empty for none."""

_MOMENT_S = 1e-6
_MIN_LOOK_S = 0.25


@dataclass(frozen=True)
class LearningOptions:
    """How curves become known in a replay.

    Attributes:
        settings: Profiler's settings.
        mode: When curves are profiled.
        learn: Whether jobs are measured at all, in ordinary running and in profiles.
        declare: The curves that users declare.
        family: The family of a job; empty for none.
        noise: How the times of steps scatter.
        batch: Samples per node and step.
        caution: Share of a rate's relative error by which the allocator lowers the rate.
    """

    settings: ProfilerSettings = field(default_factory=ProfilerSettings)
    mode: ProfilingMode = ProfilingMode.AUTO
    learn: bool = True
    declare: Declare = lambda _: ()
    family: Callable[[ReplayJob], str] = lambda _: ""
    noise: StepNoise = field(default_factory=StepNoise)
    batch: int = 192
    caution: float = 0.0


@dataclass
class _Stay:
    """A job's stay at one scale.

    Attributes:
        nodes: The scale in nodes.
        since_s: When the job began to train there, in seconds.
        before: The point of this scale before the stay; None where there was none.
        settled: Whether further steps would not change the point.
    """

    nodes: int
    since_s: float
    before: CurvePoint | None
    settled: bool = False


class ProfilingAdvisor:
    """A `replay.policies.Advisor` that knows only what a live system would know.

    Attributes:
        curves: The curves of the jobs that run.
        state: The profile runs of these jobs.
        ended: Runs that had begun for jobs that have ended since.
    """

    def __init__(self, learning: LearningOptions, options: ReplayOptions, pool: int, rng: np.random.Generator) -> None:
        """Begin without any knowledge of the jobs.

        Args:
            pool: Number of nodes in the trace.
        """
        self._learning = learning
        self._options = options
        self._pool = pool
        self._rng = rng
        self.curves = CurveEstimator.of(learning.settings.options())
        self.state = ProfilingState()
        self.ended: list[ProfileRun] = []
        self._jobs: set[str] = set()
        self._stays: dict[str, _Stay] = {}
        self._points: dict[str, dict[int, CurvePoint]] = {}
        self._choices: dict[str, tuple[JobProfile, ScaleRates]] = {}
        self._next_s = inf

    def next_look_s(self) -> float:
        """See `Advisor`."""
        return self._next_s

    def counts(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> Sequence[int]:
        """See `Advisor`."""
        self._update_jobs(jobs)
        if self._learning.learn:
            for run in jobs:
                self._measure(run, now_s)
        self._advance(now_s, jobs, pool)
        chosen = self._choose(jobs, pool)
        self._next_s = self._next_look(now_s, jobs)
        return chosen

    def _update_jobs(self, jobs: Sequence[RunningJob]) -> None:
        """Declare new jobs and forget those that have ended."""
        present = {run.job.id for run in jobs}
        for job_id in self._jobs - present:
            ended = self.state.runs.get(job_id)
            self.ended += [ended] if ended is not None and ended.began is not None else []
            self.curves.remove_job(job_id)
            for by_job in (self._stays, self._points, self._choices):
                by_job.pop(job_id, None)
        for run in jobs:
            if run.job.id not in self._jobs:
                self.curves.put_job(self._declaration(run))
        self._jobs = present

    def _declaration(self, run: RunningJob) -> JobDeclaration:
        job, learning = run.job, self._learning
        declared = (CurvePoint(p.nodes, p.rate, source=CurveSource.DECLARED) for p in learning.declare(job))
        return JobDeclaration(
            job_id=job.id,
            min_nodes=job.min_nodes,
            max_nodes=max(run.most, job.min_nodes),
            curve=tuple(declared),
            scale_up_seconds=job.scale_up_s,
            scale_down_seconds=job.scale_down_s,
            mode=learning.mode,
            family=learning.family(job),
        )

    def _advance(self, now_s: float, jobs: Sequence[RunningJob], pool: int) -> None:
        """Let Profiler recompute curves and take the next step of its runs."""
        options = self.curves.options
        self.curves.refresh(now_s)
        view = ClusterView(now_s, pool, tuple(_view(run, now_s) for run in jobs), {"": pool})
        policy = CurveBasedPolicy(self.curves, options, [run.job.id for run in jobs], now_s)
        self.state = advance(self.state, view, policy, options.profiling)

    def _measure(self, run: RunningJob, now_s: float) -> None:
        """Measure the job at its present scale up to now, before a decision may change the scale."""
        job_id = run.job.id
        points = self._points.setdefault(job_id, {})
        begin = max(run.stalled_until_s, 0.0)
        stay = self._stays.get(job_id)
        if stay is None or stay.nodes != run.count or begin > stay.since_s + _MOMENT_S:
            start = max(begin, now_s if stay is None or stay.nodes != run.count else begin)
            stay = self._stays[job_id] = _Stay(run.count, start, points.get(run.count))
        if not run.count or now_s <= stay.since_s or stay.settled:
            return
        profiled = self._is_profiled(job_id)
        measure = measured_point if profiled else approximate_point
        rate = run.speeds[run.count]
        elapsed = now_s - stay.since_s
        point = measure(run.count, rate, self._learning.batch, elapsed, now_s, self._learning.noise, self._rng)
        if point is None:
            return
        stay.settled = not profiled and point.steps >= FULL_WINDOW
        points[run.count] = _merge_points(stay.before, point)
        self.curves.put_measurements(job_id, JobMeasurements(tuple(points[nodes] for nodes in sorted(points))))

    def _is_profiled(self, job_id: str) -> bool:
        run = self.state.runs.get(job_id)
        return run is not None and run.state is ProfileRunState.MEASURING

    def _choose(self, jobs: Sequence[RunningJob], pool: int) -> list[int]:
        choices = {run.job.id: self._believed(run) for run in jobs}
        present = {run.job.id: run.count for run in jobs}
        requests = {job_id: request for job_id, request in self.state.requests.items() if job_id in present}
        pins = {job_id: ScalePin(request.nodes, request.grow, inf) for job_id, request in requests.items()}
        sizes = {job_id: choices[job_id].sizes.tolist() for job_id in pins}
        pinned = pinned_counts(present, sizes, pins, pool)
        rest = [run for run in jobs if run.job.id not in pinned]
        table = ChoiceTable.of([choices[run.job.id] for run in rest])
        terms = ObjectiveParameters(self._options.forward_s, self._options.cost_model)
        chosen = table.choose([run.count for run in rest], pool - sum(pinned.values()), terms).counts.tolist()
        counts = {run.job.id: count for run, count in zip(rest, chosen, strict=True)} | pinned
        return [counts[run.job.id] for run in jobs]

    def _believed(self, run: RunningJob) -> ScaleRates:
        """The job's choices by its estimated curve."""
        profile = self.curves.profile(run.job.id)
        if profile is None:
            raise LookupError(f"{run.job.id} has no profile although it was declared")
        known = self._choices.get(run.job.id)
        if known is not None and known[0] is profile:
            return known[1]
        curve = _lower_curve(profile, self._learning.caution)
        job = replace(run.job, curve=curve, max_nodes=max(run.most, run.job.min_nodes))
        choices = scale_rates(job.demand(), self._options.metric, self._pool)
        self._choices[run.job.id] = (profile, choices)
        return choices

    def _next_look(self, now_s: float, jobs: Sequence[RunningJob]) -> float:
        """When the active run can take its next step, in seconds. The engine moves the jobs only after this."""
        active = self.state.active
        if active is None:
            waiting = any(run.state is ProfileRunState.QUEUED for run in self.state.runs.values())
            return now_s + self._learning.settings.retry_seconds if waiting else inf
        by_id: Mapping[str, RunningJob] = {run.job.id: run for run in jobs}
        run = by_id[active.job_id]
        stalls = [other.stalled_until_s for other in jobs if other.stalled_until_s > now_s + _MOMENT_S]
        if active.state is ProfileRunState.CLIMBING or active.arrived is None:
            return min(stalls, default=now_s + self._learning.noise.publish_s)
        rate = max(run.speeds[min(active.nodes, len(run.speeds) - 1)], 1e-9)
        settings, noise = self._learning.settings, self._learning.noise
        needed = seconds_needed(
            active.nodes, rate, self._learning.batch, noise, settings.least_steps, settings.target_error
        )
        end = active.arrived + min(needed, settings.visit_seconds)
        return end if end > now_s + _MIN_LOOK_S else now_s + noise.publish_s


def _view(run: RunningJob, now_s: float) -> JobView:
    scales = tuple(permitted_scales(run.job.min_nodes, max(run.most, run.job.min_nodes)))
    return JobView(run.job.id, scales, run.count, now_s >= run.stalled_until_s - _MOMENT_S)


def _merge_points(before: CurvePoint | None, point: CurvePoint) -> CurvePoint:
    """The mean of a scale's former point and the new one, which weighs at least twice as much."""
    if before is None:
        return point
    old, new = min(before.weight, point.weight) / 2, point.weight
    rate = (old + new) / (old / before.rate + new / point.rate)
    return replace(point, rate=rate, steps=before.steps + point.steps, relative_error=(old + new) ** -0.5)


def _lower_curve(profile: JobProfile, caution: float) -> tuple[ScalingPoint, ...]:
    """The curve that the allocator gets: each rate lowered by a share of its error, never falling."""
    lowered = [point.rate * max(0.0, 1.0 - caution * point.relative_error) for point in profile.points]
    rates = np.maximum.accumulate(lowered)
    return tuple(ScalingPoint(point.nodes, float(rate)) for point, rate in zip(profile.points, rates, strict=True))
