"""U of a part of the past by minute: as it was, and as a replay has it. The definition is the Allocator's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from math import inf

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.problem.allocation_problem import JobDemand
from malletrain.allocator.utilization.best_rates import BestRates
from malletrain.allocator.utilization.definition import (
    MINUTE_S,
    MinuteUse,
    Pause,
    UseStep,
    between,
    minute_use,
    pauses_of,
    utilization_of,
)
from malletrain.allocator.utilization.meter import OpenMinute, UseMeter
from malletrain.allocator.utilization.present import JobPresent, PresentUses, demand_of
from malletrain.common.gpus import gpu_number
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import JobTerms
from malletrain.simulator.journal.decided import curve_of, decided_samples
from malletrain.simulator.journal.record import Journal, RecordedJob
from malletrain.simulator.replay.evaluation import Evaluation
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.records import ReplayResult

_TRAINING = (JobState.RUNNING, JobState.RESCALING)
_CONFIRMED = (*_TRAINING, JobState.STOPPING)
_NOT_PLANNED = (JobState.QUEUED, JobState.STOPPING)


def recorded_minutes(journal: Journal, begin_unix: float, end_unix: float) -> list[MinuteUse]:
    """U by minute between two times, as the Allocator has recorded it; where it has not, by the other records.

    Args:
        journal: The past.
        begin_unix: Seconds since the epoch.
        end_unix: The same.
    """
    known = between(journal.utilization, begin_unix, end_unix)
    return known or list(minutes_by_records(journal, begin_unix, end_unix))


def minutes_by_records(journal: Journal, begin_unix: float, end_unix: float) -> Iterator[MinuteUse]:
    """Minutes by the changes of the idle set and of the jobs, with the best that is known of curves by now.

    How long a job waited after a failure, and for how long it was silent, is not recorded.
    """
    course, meter, best = _Course(journal), UseMeter(max_gap_s=inf), BestRates()
    pauses, shares = _Pauses(journal.jobs), {job.job.id: _share(job) for job in journal.jobs}
    changes: list[Iterator[tuple[float, IdleRow | JobEvent | None]]] = [
        ((row.unix_seconds, row) for row in sorted(journal.idle, key=lambda row: row.unix_seconds)),
        ((event.unix_seconds, event) for event in _events(journal.jobs)),
        ((time, None) for time in np.arange(begin_unix - begin_unix % MINUTE_S, end_unix, MINUTE_S).tolist()),
        iter([(end_unix, None)]),
    ]
    for time, change in merge(*changes, key=lambda entry: entry[0]):
        if time > end_unix:
            break
        if change is not None:
            course.apply(change)
        if time >= begin_unix:
            meter.note_use(time, course.uses.of(time, course.idle, course.gpus, course.jobs()))
            for minute in meter.due(inf if time == end_unix else time):
                meter.close(minute)
                yield minute_use(minute.start, minute.steps, best, pauses.of(minute), shares)


def _events(jobs: Sequence[RecordedJob]) -> list[JobEvent]:
    return sorted((event for job in jobs for event in job.events), key=lambda event: event.unix_seconds)


def _share(recorded: RecordedJob) -> float:
    """How much of what its curve gives a job has trained over its whole life, 0 to 1: Monitor tells of the sum only."""
    measured = recorded.measured
    if measured is None or not curve_of(recorded):
        return 0.0
    possible = decided_samples(recorded, measured.unix_seconds)
    return min(1.0, measured.samples / possible) if possible > 0 else 1.0


@dataclass
class _JobCourse:
    """A job at a moment."""

    recorded: RecordedJob
    state: JobState = JobState.QUEUED
    commanded: frozenset[str] = frozenset()
    confirmed: frozenset[str] = frozenset()

    def present(self) -> JobPresent:
        """What it can train and does."""
        return JobPresent(
            id=self.recorded.job.id,
            terms=self.recorded.job.spec,
            curve=curve_of(self.recorded),
            in_fleet=bool(self.recorded.job.fleet_id),
            trains_on=self.commanded & self.confirmed if self.state in _TRAINING else frozenset(),
        )


class _Course:
    """The idle set and the jobs, change by change."""

    def __init__(self, journal: Journal) -> None:
        self.idle: set[str] = set()
        self.uses = PresentUses()
        self._jobs = {recorded.job.id: _JobCourse(recorded) for recorded in journal.jobs}
        self._presents: dict[str, JobPresent] = {}
        numbers = (gpu_number(name) for job in journal.jobs for event in job.events for name in event.nodes)
        self.gpus = 1 + max((number for number in numbers if number is not None), default=0)

    def apply(self, change: IdleRow | JobEvent) -> None:
        """Nodes have joined or left, or a job has changed."""
        if isinstance(change, IdleRow):
            self.idle = set(change.joined) if change.kind.whole else (self.idle - set(change.left)) | set(change.joined)
            return
        job = self._jobs[change.job_id]
        job.state, job.commanded = change.to_state, frozenset(change.nodes)
        if change.to_state not in _CONFIRMED:
            job.confirmed = frozenset()
        elif change.to_state is JobState.RUNNING or change.reason_code is JobReason.CONFIRMED:
            job.confirmed = job.commanded
        if job.state.final or job.state in _NOT_PLANNED:
            self._presents.pop(change.job_id, None)
        else:
            self._presents[change.job_id] = job.present()

    def jobs(self) -> list[JobPresent]:
        """Jobs that could have nodes, in the order of their submission."""
        return [self._presents[job_id] for job_id in sorted(self._presents)]


class _Pauses:
    """When jobs stood still, as Monitor has measured it."""

    def __init__(self, jobs: Sequence[RecordedJob]) -> None:
        self._measured = {job.job.id: job.measured for job in jobs if job.measured is not None}

    def of(self, minute: OpenMinute) -> Mapping[str, list[Pause]]:
        pauses = {}
        for job_id in minute.trainers:
            measured = self._measured.get(job_id)
            if measured is not None:
                stalls = [(rescale.unix_seconds, rescale.seconds) for rescale in measured.rescales]
                starts = minute.starts.get(job_id, ())
                pauses[job_id] = pauses_of(stalls, measured.first_batches, measured.step_s, starts)
        return pauses


def replayed_minutes(
    result: ReplayResult, jobs: Sequence[ReplayJob], begin_unix: float, end_unix: float
) -> Iterator[MinuteUse]:
    """U by whole minutes of a replay.

    Args:
        result: The replay.
        begin_unix: When its second 0 was, in seconds since the epoch.
        end_unix: When its last second was.
    """
    first = -(-begin_unix // MINUTE_S) * MINUTE_S
    edges = np.arange(first, end_unix - MINUTE_S + 1e-6, MINUTE_S)
    if not len(edges):
        return
    trained = np.diff(samples_at(result, np.append(edges, edges[-1] + MINUTE_S) - begin_unix, end_unix - begin_unix))
    best, steps = BestRates(), _steps(result, jobs, begin_unix, end_unix)
    coming = next(steps, None)
    for start, samples in zip(edges.tolist(), trained.tolist(), strict=True):
        parts: list[UseStep] = []
        while coming is not None and coming.start < start + MINUTE_S:
            begin, end = max(start, coming.start), min(start + MINUTE_S, coming.start + coming.seconds)
            if end > begin:
                parts.append(replace(coming, start=begin, seconds=end - begin))
            if coming.start + coming.seconds > start + MINUTE_S:
                break
            coming = next(steps, None)
        if parts:
            yield minute_use(start, parts, best, trained=samples)


def _steps(result: ReplayResult, jobs: Sequence[ReplayJob], begin_unix: float, end_unix: float) -> Iterator[UseStep]:
    """The times between two decisions, with the jobs that were admitted and not done."""
    demands = {job.id: demand for job in jobs if (demand := _demand(job)) is not None}
    order = {job.id: place for place, job in enumerate(jobs)}
    admissions = sorted((job.admitted_s, job.job) for job in result.jobs)
    ends = sorted((job.ended_s, job.job) for job in result.jobs if job.ended_s is not None)
    active: set[str] = set()
    known: tuple[JobDemand, ...] = ()
    times = result.decisions["time_s"].tolist()
    at_admission = at_end = 0
    for time, until, pool in zip(
        times, [*times[1:], end_unix - begin_unix], result.decisions["pool"].tolist(), strict=True
    ):
        changed = False
        while at_admission < len(admissions) and admissions[at_admission][0] <= time:
            active.add(admissions[at_admission][1])
            at_admission, changed = at_admission + 1, True
        while at_end < len(ends) and ends[at_end][0] <= time:
            active.discard(ends[at_end][1])
            at_end, changed = at_end + 1, True
        if changed:
            known = tuple(demands[name] for name in sorted(active & demands.keys(), key=order.__getitem__))
        if until > time:
            yield UseStep(begin_unix + time, until - time, pool, known, (0.0,) * len(known))


def _demand(job: ReplayJob) -> JobDemand | None:
    return demand_of(JobPresent(job.id, JobTerms(job.min_nodes, job.max_nodes), job.curve, False, frozenset()))


def samples_at(result: ReplayResult, times_s: NDArray[np.float64], duration_s: float) -> NDArray[np.float64]:
    """Samples up to each of several times, in seconds: linear between decisions, and from the last one to the end."""
    decisions = result.decisions
    times = np.append(np.repeat(decisions["time_s"], 2), duration_s)
    pairs = np.ravel(np.column_stack((decisions["samples_before"], decisions["samples"])))
    totals = np.append(pairs, sum(job.samples for job in result.jobs))
    return np.asarray(np.interp(times_s, times, totals), dtype=np.float64)


def by_minute(evaluation: Evaluation, jobs: Sequence[ReplayJob], begin_unix: float, end_unix: float) -> Evaluation:
    """The evaluation of a replay of the past, with U and its bound by minute, as they are told of a running system.

    Minutes without jobs count nowhere. Where there is no whole minute with jobs, it is returned as it is.
    """
    utilization = utilization_of(replayed_minutes(evaluation.result, jobs, begin_unix, end_unix))
    if utilization is None or utilization.efficiency is None:
        return evaluation
    metrics = evaluation.metrics
    return replace(
        evaluation,
        metrics=replace(
            metrics,
            utilization_efficiency=utilization.efficiency,
            zero_cost_bound=None if metrics.zero_cost_bound is None else utilization.bound,
            by_minute=True,
        ),
    )
