"""What a search does next, from the states of its trials and of their jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.model.job_state import JobState

_MAX_REASON = 500
"""Characters that are kept with a trial."""
_MAX_NAMED = 10


class TrialStage(StrEnum):
    """Where a trial is; Optuna's names."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


@dataclass(frozen=True)
class TrialView:
    """A trial as its study has stored it.

    Attributes:
        number: Its number in the study, from 0.
        stage: Where it is.
        job_id: Its job; empty: it may not have been submitted yet.
        is_pruned: Whether it has been decided that it ends before its end.
        is_counted: Whether it is one of those that were asked for: not if it was cancelled with the search.
    """

    number: int
    stage: TrialStage
    job_id: str = ""
    is_pruned: bool = False
    is_counted: bool = True


@dataclass(frozen=True)
class TrialJob:
    """The job of a trial as JobManager has it.

    Attributes:
        state: Its state.
        metrics: What its trainer has reported at its end.
        reason: Why it is in this state.
        weight: Its weight, as it is now.
    """

    state: JobState
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class SearchPlan:
    """How far a search goes.

    Attributes:
        metric: Which of a job's metrics is the value of its trial.
        trials: How many trials the study is to have, at least 1.
        at_once: Most trials at the same time, at least 1.
    """

    metric: str
    trials: int
    at_once: int


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial.

    Attributes:
        number: The trial.
        stage: COMPLETE, PRUNED or FAIL.
        value: Of the metric; None unless it is COMPLETE.
        reason: Why it is not; empty: it is.
    """

    number: int
    stage: TrialStage
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class NextSteps:
    """What is to be done now, in this order.

    Attributes:
        tell: What came of trials that have ended.
        cancel: Identifiers of jobs that are to end before their end.
        submit: Numbers of trials that have no job yet.
        ask: How many new trials the study is asked for.
        is_over: Whether nothing is left to be done, now or later.
    """

    tell: tuple[TrialOutcome, ...] = ()
    cancel: tuple[str, ...] = ()
    submit: tuple[int, ...] = ()
    ask: int = 0
    is_over: bool = False


def next_steps(trials: Iterable[TrialView], jobs: Mapping[str, TrialJob | None], plan: SearchPlan) -> NextSteps:
    """What is to be done now. The same state always gives the same steps, so they may be repeated after a crash.

    Args:
        trials: All trials of the study.
        jobs: The jobs of those that run, by identifier; None: JobManager no longer has it. One that could not be
            looked at is left out.
        plan: How far the search goes.
    """
    known = [trial for trial in trials if trial.stage is not TrialStage.WAITING]
    running = [trial for trial in known if trial.stage is TrialStage.RUNNING]
    tell: list[TrialOutcome] = []
    cancel: list[str] = []
    for trial in running:
        if trial.job_id not in jobs:
            continue
        job = jobs[trial.job_id]
        outcome = outcome_of(trial, job, plan.metric)
        if outcome is not None:
            tell.append(outcome)
        elif trial.is_pruned:
            cancel.append(trial.job_id)
    left = len(running) - len(tell)
    asked = sum(trial.is_counted for trial in known)
    wanted = max(0, plan.trials - asked)
    return NextSteps(
        tell=tuple(tell),
        cancel=tuple(cancel),
        submit=tuple(trial.number for trial in running if not trial.job_id),
        ask=max(0, min(plan.at_once - left, wanted)),
        is_over=not left and not wanted,
    )


def outcome_of(trial: TrialView, job: TrialJob | None, metric: str) -> TrialOutcome | None:
    """What came of a trial; None: its job has not ended.

    Args:
        trial: The trial.
        job: Its job; None: JobManager no longer has it.
        metric: Which of the job's metrics is its value.
    """
    if job is None:
        return _without_value(trial, f"JobManager no longer has {trial.job_id}")
    if not job.state.final:
        return None
    if job.state is not JobState.COMPLETED:
        return _without_value(trial, f"{trial.job_id} {job.state}: {job.reason}")
    value = job.metrics.get(metric)
    if value is not None and math.isfinite(value):
        return TrialOutcome(trial.number, TrialStage.COMPLETE, value)
    reported = ", ".join(sorted(job.metrics)[:_MAX_NAMED]) or "none"
    got = f"metric {metric} is {value}" if value is not None else f"no metric {metric}; reported: {reported}"
    return _without_value(trial, f"{trial.job_id} {job.state}: {got}")


def failures_in_a_row(before: int, outcomes: Sequence[TrialOutcome]) -> int:
    """How many trials have failed one after the other.

    Args:
        before: So many had before.
        outcomes: What came of others since, in their order.
    """
    for outcome in outcomes:
        before = before + 1 if outcome.stage is TrialStage.FAIL else 0
    return before


def _without_value(trial: TrialView, reason: str) -> TrialOutcome:
    stage = TrialStage.PRUNED if trial.is_pruned else TrialStage.FAIL
    return TrialOutcome(trial.number, stage, reason=" ".join(reason.split())[:_MAX_REASON])
