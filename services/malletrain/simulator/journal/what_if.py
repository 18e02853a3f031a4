"""A part of the past as it was, and as other settings would have made it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.utilization.definition import Utilization, utilization_of
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.what_if import ComparedJob, PastOutcome, WhatIfComparison
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.journal.conversion import journal_input
from malletrain.simulator.journal.decided import recorded_progress
from malletrain.simulator.journal.record import Journal, RecordedJob
from malletrain.simulator.journal.utilization import by_minute, recorded_minutes, samples_at
from malletrain.simulator.replay.evaluation import Evaluation, Scenario, evaluate
from malletrain.simulator.replay.fast_engine import Progress
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import ReplayResult

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
    found = journal_input(journal, begin_unix, end_unix)
    if not found.jobs:
        raise InvalidInputError("past", " ".join(("a time in which jobs trained.", *found.notes)))
    evaluation = by_minute(
        evaluate(Scenario.of(found.trace, end_unix - begin_unix), found.jobs, options, progress=progress),
        found.jobs,
        begin_unix,
        end_unix,
    )
    used = utilization_of(recorded_minutes(journal, begin_unix, end_unix))
    times = np.linspace(begin_unix, end_unix, _TIMES)
    replayed = {job.id for job in found.jobs}
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
        replay=_replayed(evaluation, times - begin_unix),
        free=_free(evaluation, times - begin_unix),
        jobs=_compared(jobs, {job_id: float(course[-1]) for job_id, course in courses.items()}, evaluation),
        notes=found.notes,
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


def _replayed(evaluation: Evaluation, times_s: NDArray[np.float64]) -> PastOutcome:
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


def _compared(jobs: Sequence[RecordedJob], really: dict[str, float], evaluation: Evaluation) -> tuple[ComparedJob, ...]:
    replayed = {job.job: job.samples for job in evaluation.result.jobs}
    found = [
        ComparedJob(one.job.id, one.job.spec.name, one.job.owner, really[one.job.id], replayed.get(one.job.id, 0.0))
        for one in jobs
    ]
    return tuple(sorted(found, key=lambda job: -max(job.really, job.replayed)))
