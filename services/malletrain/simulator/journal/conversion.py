"""The past of a system as the input of a replay, as it was, and as other settings would have made it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.utilization.definition import Utilization, utilization_of
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_value import LINEAR_VALUE
from malletrain.model.what_if import ComparedJob, PastOutcome, WhatIfComparison
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.journal.decided import changes_of, curve_of, recorded_progress
from malletrain.simulator.journal.record import Journal, RecordedJob
from malletrain.simulator.journal.utilization import by_minute, recorded_minutes, samples_at
from malletrain.simulator.replay.evaluation import Evaluation, Scenario, evaluate
from malletrain.simulator.replay.fast_engine import Progress
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import ReplayResult

ENDLESS_SAMPLES = 1e15
"""Of a job that had not ended and has no target."""
_DEFAULT_STALL_S = 0.0


@dataclass(frozen=True)
class JournalInput:
    """Input of a replay.

    Attributes:
        trace: The idle set; second 0 is the beginning of the time that is replayed.
        jobs: In the order of submission.
        notes: What could not be taken over, in sentences.
    """

    trace: Trace
    jobs: tuple[ReplayJob, ...]
    notes: tuple[str, ...]


def journal_input(journal: Journal, begin_unix: float, end_unix: float) -> JournalInput:
    """The part of a journal between two times, in seconds since the epoch, as input of a replay."""
    present = [recorded for recorded in journal.jobs if _is_present(recorded, begin_unix, end_unix)]
    replay_jobs = [_replay_job(recorded, begin_unix) for recorded in present]
    jobs = tuple(sorted((job for job in replay_jobs if job is not None), key=lambda job: job.submit_s))
    return JournalInput(
        idle_trace(journal.idle, begin_unix, end_unix), jobs, tuple(_notes(journal, present, begin_unix))
    )


def idle_trace(rows: Sequence[IdleRow], begin_unix: float, end_unix: float) -> Trace:
    """The idle fragments between two times, in seconds since the epoch.

    A node counts from when the Allocator was told of it, except one of the first row, which may have been idle before.
    """
    since: dict[str, float] = {}
    ended: dict[str, list[tuple[float, float]]] = {}
    for index, row in enumerate(sorted(rows, key=lambda row: row.unix_seconds)):
        gone = [name for name in since if name not in row.joined] if row.kind.whole else row.left
        for name in gone:
            if (joined := since.pop(name, None)) is not None:
                ended.setdefault(name, []).append((joined, row.unix_seconds))
        for name, idle_since in row.joined.items():
            since.setdefault(name, min(idle_since, row.unix_seconds) if index == 0 else row.unix_seconds)
    for name, joined in since.items():
        ended.setdefault(name, []).append((joined, max(end_unix, joined)))
    names = tuple(sorted(ended))
    order = {name: index for index, name in enumerate(names)}
    fragments = sorted(
        (
            Fragment(name, first - begin_unix, last - begin_unix)
            for name, spans in ended.items()
            for first, last in _join(spans)
            if first < last and last > begin_unix and first < end_unix
        ),
        key=lambda fragment: (fragment.idle_from_s, order[fragment.node]),
    )
    earliest = min(0.0, fragments[0].idle_from_s) if fragments else 0.0
    origin = datetime.fromtimestamp(begin_unix, UTC).isoformat()
    return Trace(tuple(fragments), names, end_unix - begin_unix, earliest, origin)


def _join(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of one node in the order of time; those that touch become one."""
    joined: list[tuple[float, float]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _is_present(recorded: RecordedJob, begin_unix: float, end_unix: float) -> bool:
    ended = recorded.end_unix
    return recorded.job.create_time < end_unix and (ended is None or ended > begin_unix)


def _replay_job(recorded: RecordedJob, begin_unix: float) -> ReplayJob | None:
    """The rest of a job from a time on; None where it is not replayed, which `_notes` explains."""
    job, curve = recorded.job, curve_of(recorded)
    if job.fleet_id or not curve or job.spec.min_nodes > curve[-1].nodes:
        return None
    samples = _total(recorded) - _samples_until(recorded, begin_unix)
    if samples <= 0:
        return None
    up_s, down_s = mean_stalls(recorded)
    return ReplayJob(
        id=job.id,
        model=job.spec.family or job.spec.name,
        submit_s=max(0.0, recorded.ready_unix - begin_unix),
        scale_up_s=up_s,
        scale_down_s=down_s,
        min_nodes=job.spec.min_nodes,
        max_nodes=job.spec.max_nodes,
        samples=samples,
        curve=curve,
        owner=job.owner,
        burst_buffer_gb=job.spec.burst_buffer_gb,
        boot_s=mean_boot(recorded),
    )


def _total(recorded: RecordedJob) -> float:
    """Samples of the whole job: what it processed if it has ended, else its target."""
    if recorded.job.state.final:
        return recorded.measured.samples if recorded.measured is not None else recorded.job.samples
    return recorded.job.spec.target_samples or ENDLESS_SAMPLES


def _samples_until(recorded: RecordedJob, until_unix: float) -> float:
    """Samples that it had processed by a time."""
    return recorded_progress(recorded, (until_unix,))[0] if until_unix > recorded.job.create_time else 0.0


def mean_stalls(recorded: RecordedJob) -> tuple[float, float]:
    """R_up and R_down of a job in seconds: the means of its recorded stalls, else as plans believed them."""
    changes = [change for change in changes_of(recorded) if change.nodes and isfinite(change.stall_s)]
    ups = [change.stall_s for change in changes if change.growth]
    downs = [change.stall_s for change in changes if not change.growth]
    believed, spec = recorded.believed, recorded.job.spec
    default_up = believed.scale_up_s if believed is not None else spec.scale_up_seconds
    default_down = believed.scale_down_s if believed is not None else spec.scale_down_seconds
    return (
        fmean(ups) if ups else default_up or _DEFAULT_STALL_S,
        fmean(downs) if downs else default_down or _DEFAULT_STALL_S,
    )


def mean_boot(recorded: RecordedJob) -> float:
    """How long new workers of a job have booted before growths, in seconds: the mean; 0 where none was measured."""
    measured = recorded.measured
    if measured is None or not measured.rescales:
        return 0.0
    changes = [change for change in changes_of(recorded) if change.before and change.growth]
    return fmean(change.boot_s for change in changes) if changes else 0.0


def _is_special(spec: JobSpec) -> bool:
    return bool(spec.permitted_nodes) or spec.weight != 1 or spec.value != LINEAR_VALUE


def _notes(journal: Journal, present: Sequence[RecordedJob], begin_unix: float) -> list[str]:
    """What of the present jobs and of the system is not as it was, in sentences."""
    alone = [recorded for recorded in present if not recorded.job.fleet_id]
    ended = [recorded for recorded in alone if recorded.job.state.final]
    known = [recorded for recorded in alone if curve_of(recorded)]
    early = sum(recorded.job.create_time < journal.begin_unix for recorded in present)
    starts = sum(row.kind is IdleRowKind.START and row.unix_seconds > begin_unix for row in journal.idle[1:])
    idle_jobs = sum(recorded in known and _total(recorded) <= 0 for recorded in ended)
    cut = sum(recorded.job.state.value in ("CANCELLED", "FAILED") and _total(recorded) > 0 for recorded in ended)
    endless = sum(not recorded.job.state.final and not recorded.job.spec.target_samples for recorded in alone)
    special = sum(_is_special(recorded.job.spec) for recorded in alone)
    counted = (
        (early, "submitted before the idle set is first known: nothing is known of the nodes of that time"),
        (len(present) - len(alone), "of a fleet, which is not replayed: its nodes are others' here"),
        (len(alone) - len(known), "not replayed: neither planned nor measured, so that no curve is known"),
        (idle_jobs, "not replayed: ended without having trained"),
        (cut, "cancelled or failed: here they end after as many samples as they had processed"),
        (endless, "still there and without a target: here they never end"),
        (special, "submitted with weights, values or permitted scales, which are left out here"),
    )
    notes = [f"{count} {'job was' if count == 1 else 'jobs were'} {what}." for count, what in counted if count]
    if starts:
        times = "once" if starts == 1 else f"{starts} times"
        notes.append(f"The Allocator was started {times} in this time: the nodes before that are as they last were.")
    if len(journal.pools) > 1:
        notes.append(f"The nodes were of {len(journal.pools)} pools, and are one pool here.")
    return notes


_RESCALED = frozenset((JobReason.PLAN_STARTED, JobReason.PLAN_RESCALED, JobReason.PLAN_MOVED))
_PREEMPTED = frozenset((JobReason.PREEMPTED, JobReason.PREEMPTED_BELOW_MINIMUM, JobReason.PREEMPTED_STATE_LOST))
_TIMES = 169
"""Times of the curves: an hour apart in a week."""


def what_if(
    journal: Journal, begin_unix: float, end_unix: float, options: ReplayOptions, progress: Progress = lambda _: None
) -> WhatIfComparison:
    """Replay a part of the past with some settings.

    Args:
        journal: The past.
        begin_unix: Begin of the part, in seconds since the epoch.
        end_unix: Its end.
        options: The settings; the duration is that of the part.
        progress: Told the simulated second after every decision.

    Raises:
        InvalidInputError: no job or no idle node is in this part, or the settings do not fit it.
    """
    past = journal_input(journal, begin_unix, end_unix)
    if not past.jobs:
        raise InvalidInputError("past", " ".join(("a time in which jobs trained.", *past.notes)))
    evaluation = by_minute(
        evaluate(Scenario.of(past.trace, end_unix - begin_unix), past.jobs, options, progress=progress),
        past.jobs,
        begin_unix,
        end_unix,
    )
    used = utilization_of(recorded_minutes(journal, begin_unix, end_unix))
    times = np.linspace(begin_unix, end_unix, _TIMES)
    replayed = {job.id for job in past.jobs}
    courses = {
        recorded.job.id: np.asarray(recorded_progress(recorded, times.tolist()))
        for recorded in journal.jobs
        if recorded.job.id in replayed
    }
    courses = {job_id: course - course[0] for job_id, course in courses.items()}
    jobs = [recorded for recorded in journal.jobs if recorded.job.id in replayed]
    return WhatIfComparison(
        times_unix=tuple(times.tolist()),
        node_hours=evaluation.metrics.resource_integral_node_hours,
        held=evaluation.metrics.occupied_fraction,
        really=_really(jobs, sum(courses.values(), np.zeros(_TIMES)), (begin_unix, end_unix), used),
        replay=_outcome_of(evaluation, times - begin_unix),
        free=_free(evaluation, times - begin_unix),
        jobs=_compare(jobs, {job_id: float(course[-1]) for job_id, course in courses.items()}, evaluation),
        notes=past.notes,
    )


def _really(
    jobs: Sequence[RecordedJob], course: NDArray[np.float64], span: tuple[float, float], used: Utilization | None
) -> PastOutcome:
    codes = [event.reason_code for job in jobs for event in job.events if span[0] <= event.unix_seconds <= span[1]]
    return PastOutcome(
        samples=float(course[-1]),
        efficiency=used.efficiency if used is not None else None,
        bound=used.bound if used is not None else None,
        rescales=sum(code in _RESCALED for code in codes),
        preemptions=sum(code in _PREEMPTED for code in codes),
        course=tuple(course.tolist()),
    )


def _outcome_of(evaluation: Evaluation, times_s: NDArray[np.float64]) -> PastOutcome:
    metrics = evaluation.metrics
    return PastOutcome(
        metrics.samples,
        metrics.utilization_efficiency,
        metrics.zero_cost_bound,
        metrics.rescales,
        metrics.preempted_jobs,
        _course(evaluation.result, times_s),
    )


def _free(evaluation: Evaluation, times_s: NDArray[np.float64]) -> PastOutcome:
    if evaluation.free is None:
        raise RuntimeError("it was evaluated with the bound")
    samples = sum(job.samples for job in evaluation.free.jobs)
    bound = evaluation.metrics.zero_cost_bound
    return PastOutcome(samples, bound, bound, None, None, _course(evaluation.free, times_s))


def _course(result: ReplayResult, times_s: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(samples_at(result, times_s, float(times_s[-1])).tolist())


def _compare(jobs: Sequence[RecordedJob], really: dict[str, float], evaluation: Evaluation) -> tuple[ComparedJob, ...]:
    replayed = {job.job: job.samples for job in evaluation.result.jobs}
    compared = [
        ComparedJob(one.job.id, one.job.spec.name, one.job.owner, really[one.job.id], replayed.get(one.job.id, 0.0))
        for one in jobs
    ]
    return tuple(sorted(compared, key=lambda job: -max(job.really, job.replayed)))
