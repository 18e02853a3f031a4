"""MalleTrain in a replay: the production Profiler learns the curves that the production allocator decides by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from malletrain.allocator.holds import Hold, held_counts
from malletrain.allocator.menu import Menu, Terms
from malletrain.allocator.problem import ScalingPoint
from malletrain.allocator.worth import Choices, choices_of
from malletrain.profiler.book import JobFacts, JobProfile, Measurements, ProfileBook
from malletrain.profiler.desk import Desk, JobView
from malletrain.profiler.knots import Knot
from malletrain.profiler.modes import Mode
from malletrain.profiler.office import Office
from malletrain.profiler.runs import Run, RunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.sizes import permitted_scales
from malletrain.simulator.profiling.steps import FULL_WINDOW, Noise, glance, seconds_needed, visit
from malletrain.simulator.replay.options import Options
from malletrain.simulator.replay.running import Running
from malletrain.simulator.replay.workload import TraceJob

Declare = Callable[[TraceJob], tuple[ScalingPoint, ...]]
"""What a user says of a job's scaling; nothing where empty."""

_MOMENT_S = 1e-6
_LEAST_LOOK_S = 0.25


@dataclass(frozen=True)
class Learning:
    """How curves become known.

    Attributes:
        settings: The Profiler's.
        mode: Whether curves are measured on purpose.
        learn: Whether ordinary running teaches anything.
        declare: What users say.
        family: The family of a job; empty for none.
        noise: How steps scatter.
        batch: Samples per node and step.
        caution: How much of a rate's error the allocator takes off it.
    """

    settings: ProfilerSettings = field(default_factory=ProfilerSettings)
    mode: Mode = Mode.AUTO
    learn: bool = True
    declare: Declare = lambda _: ()
    family: Callable[[TraceJob], str] = lambda _: ""
    noise: Noise = field(default_factory=Noise)
    batch: int = 192
    caution: float = 0.0


@dataclass
class _Stay:
    """A job's stay at a scale: since when, what was known of the scale before, whether more would be nothing new."""

    nodes: int
    since_s: float
    before: Knot | None
    settled: bool = False


class ProfilingAdvisor:
    """`replay.policies.Advisor` that knows only what a live system would know."""

    def __init__(self, learning: Learning, options: Options, pool: int, rng: np.random.Generator) -> None:
        """Know nothing yet.

        Args:
            learning: How curves become known.
            options: Of the replay.
            pool: Nodes of the trace.
            rng: Randomness of the steps.
        """
        self._learning = learning
        self._options = options
        self._pool = pool
        self._rng = rng
        self.office = Office(learning.settings, ProfileBook(learning.settings), Desk())
        self.ended: list[Run] = []
        self._jobs: set[str] = set()
        self._stays: dict[str, _Stay] = {}
        self._points: dict[str, dict[int, Knot]] = {}
        self._choices: dict[str, tuple[JobProfile, Choices]] = {}
        self._next_s = inf

    def next_look_s(self) -> float:
        """See `Advisor`."""
        return self._next_s

    def counts(self, now_s: float, jobs: Sequence[Running], pool: int) -> Sequence[int]:
        """See `Advisor`."""
        self._meet(jobs)
        if self._learning.learn:
            for run in jobs:
                self._measure(run, now_s)
        views = [_view(run, now_s) for run in jobs]
        self.office.look(now_s, {"": pool}, views)
        chosen = self._choose(jobs, pool)
        self._next_s = self._next_look(now_s, jobs)
        return chosen

    def _meet(self, jobs: Sequence[Running]) -> None:
        present = {run.job.id for run in jobs}
        for job_id in self._jobs - present:
            ended = self.office.desk.runs.get(job_id)
            self.ended += [ended] if ended is not None and ended.began is not None else []
            self.office.book.remove_job(job_id)
            for holder in (self._stays, self._points, self._choices):
                holder.pop(job_id, None)
        for run in jobs:
            if run.job.id not in self._jobs:
                self.office.put_job(self._facts(run))
        self._jobs = present

    def _facts(self, run: Running) -> JobFacts:
        job, learning = run.job, self._learning
        return JobFacts(
            job_id=job.id,
            min_nodes=job.min_nodes,
            max_nodes=max(run.most, job.min_nodes),
            curve=tuple(Knot(point.nodes, point.rate) for point in learning.declare(job)),
            scale_up_seconds=job.scale_up_s,
            scale_down_seconds=job.scale_down_s,
            mode=learning.mode,
            family=learning.family(job),
        )

    def _measure(self, run: Running, now_s: float) -> None:
        """Take in what the job has shown at its present scale, up to now; it may be about to change."""
        job_id = run.job.id
        points = self._points.setdefault(job_id, {})
        begin = max(run.stalled_until_s, 0.0)
        stay = self._stays.get(job_id)
        if stay is None or stay.nodes != run.count or begin > stay.since_s + _MOMENT_S:
            start = max(begin, now_s if stay is None or stay.nodes != run.count else begin)
            stay = self._stays[job_id] = _Stay(run.count, start, points.get(run.count))
        if not run.count or now_s <= stay.since_s or stay.settled:
            return
        measured = self._is_measured(job_id)
        draw = visit if measured else glance
        rate = run.speeds[run.count]
        elapsed = now_s - stay.since_s
        knot = draw(run.count, rate, self._learning.batch, elapsed, now_s, self._learning.noise, self._rng)
        if knot is None:
            return
        stay.settled = not measured and knot.steps >= FULL_WINDOW
        points[run.count] = _merged(stay.before, knot)
        self.office.put_measurements(job_id, Measurements(tuple(points[nodes] for nodes in sorted(points))))

    def _is_measured(self, job_id: str) -> bool:
        run = self.office.desk.runs.get(job_id)
        return run is not None and run.state is RunState.MEASURING

    def _choose(self, jobs: Sequence[Running], pool: int) -> list[int]:
        choices = {run.job.id: self._believed(run) for run in jobs}
        present = {run.job.id: run.count for run in jobs}
        orders = {run.job.id: brief.order for run in jobs if (brief := self.office.brief(run.job.id)) and brief.order}
        holds = {job_id: Hold(order.nodes, order.grow, inf) for job_id, order in orders.items()}
        sizes = {job_id: choices[job_id].sizes.tolist() for job_id in holds}
        held = held_counts(present, sizes, holds, pool)
        rest = [run for run in jobs if run.job.id not in held]
        menu = Menu.of([choices[run.job.id] for run in rest])
        terms = Terms(self._options.forward_s, self._options.cost_model)
        found = menu.choose([run.count for run in rest], pool - sum(held.values()), terms).counts.tolist()
        counts = {run.job.id: count for run, count in zip(rest, found, strict=True)} | held
        return [counts[run.job.id] for run in jobs]

    def _believed(self, run: Running) -> Choices:
        profile = self.office.book.profile(run.job.id)
        if profile is None:
            raise LookupError(f"{run.job.id} has no profile although it was put in the book")
        known = self._choices.get(run.job.id)
        if known is not None and known[0] is profile:
            return known[1]
        curve = _lowered(profile, self._learning.caution)
        job = replace(run.job, curve=curve, max_nodes=max(run.most, run.job.min_nodes))
        choices = choices_of(job.demand(), self._options.metric, self._pool)
        self._choices[run.job.id] = (profile, choices)
        return choices

    def _next_look(self, now_s: float, jobs: Sequence[Running]) -> float:
        """When the active run will have something to see; the engine moves the jobs only after this."""
        active = self.office.desk.active
        if active is None:
            waiting = any(run.state is RunState.QUEUED for run in self.office.desk.runs.values())
            return now_s + self._learning.settings.retry_seconds if waiting else inf
        by_id: Mapping[str, Running] = {run.job.id: run for run in jobs}
        run = by_id[active.job_id]
        stalls = [other.stalled_until_s for other in jobs if other.stalled_until_s > now_s + _MOMENT_S]
        if active.state is RunState.CLIMBING or active.arrived is None:
            return min(stalls, default=now_s + self._learning.noise.publish_s)
        rate = max(run.speeds[min(active.nodes, len(run.speeds) - 1)], 1e-9)
        settings, noise = self._learning.settings, self._learning.noise
        needed = seconds_needed(
            active.nodes, rate, self._learning.batch, noise, settings.least_steps, settings.target_error
        )
        end = active.arrived + min(needed, settings.visit_seconds)
        return end if end > now_s + _LEAST_LOOK_S else now_s + noise.publish_s


def _view(run: Running, now_s: float) -> JobView:
    scales = tuple(permitted_scales(run.job.min_nodes, max(run.most, run.job.min_nodes), ()))
    return JobView(run.job.id, scales, run.count, now_s >= run.stalled_until_s - _MOMENT_S)


def _merged(before: Knot | None, knot: Knot) -> Knot:
    """The newest stay outweighs what was known of the scale before."""
    if before is None:
        return knot
    old, new = min(before.weight, knot.weight) / 2, knot.weight
    rate = (old + new) / (old / before.rate + new / knot.rate)
    return replace(knot, rate=rate, steps=before.steps + knot.steps, error=(old + new) ** -0.5)


def _lowered(profile: JobProfile, caution: float) -> tuple[ScalingPoint, ...]:
    rates = np.maximum.accumulate([point.rate * max(0.0, 1.0 - caution * point.error) for point in profile.points])
    return tuple(ScalingPoint(point.nodes, float(rate)) for point, rate in zip(profile.points, rates, strict=True))
