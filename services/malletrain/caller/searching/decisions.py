"""What a search does next, from the states of its trials and jobs, and which trials are promising. Pure.

A trial is compared with others at a step that they have reached, too, as the median rule of Optuna's pruners does
(Golovin et al., Google Vizier, KDD 2017): whoever has trained for longer is not better for that alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor, log2

from malletrain.model.job_state import JobState

_MAX_REASON = 500
"""Characters that are kept with a trial."""
_MAX_NAMED = 10


class TrialStage(StrEnum):
    """The state of a trial, with Optuna's names."""

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
    """The result of a trial that has ended.

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
        tell: Results of trials, which the study is told.
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
    counted = sum(trial.is_counted for trial in known)
    wanted = max(0, plan.trials - counted)
    return NextSteps(
        tell=tuple(tell),
        cancel=tuple(cancel),
        submit=tuple(trial.number for trial in running if not trial.job_id),
        ask=max(0, min(plan.at_once - left, wanted)),
        is_over=not left and not wanted,
    )


def outcome_of(trial: TrialView, job: TrialJob | None, metric: str) -> TrialOutcome | None:
    """The result of a trial; None: its job has not ended.

    Args:
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
    missing = f"no metric {metric}, which `malletrain.client.done` reports; reported: {reported}"
    got = missing if value is None else f"metric {metric} is {value}"
    return _without_value(trial, f"{trial.job_id} {job.state}: {got}")


def failures_in_a_row(before: int, outcomes: Sequence[TrialOutcome]) -> int:
    """How many trials have failed one after the other.

    Args:
        before: So many had before.
        outcomes: Results since then, in their order.
    """
    for outcome in outcomes:
        before = before + 1 if outcome.stage is TrialStage.FAIL else 0
    return before


def _without_value(trial: TrialView, reason: str) -> TrialOutcome:
    stage = TrialStage.PRUNED if trial.is_pruned else TrialStage.FAIL
    return TrialOutcome(trial.number, stage, reason=" ".join(reason.split())[:_MAX_REASON])


MIN_COMPARED = 3
"""A trial that fewer others can be compared with is not judged."""
MAX_FAVOUR = 64.0


def promising_weights(
    logged: Mapping[int, Mapping[int, float]],
    running: Collection[int],
    *,
    maximize: bool,
    base: float,
    favour: float,
) -> dict[int, float]:
    """The weights of jobs of running trials: `base` times a power of 2, which is `favour` at most.

    The exponent follows the share of the others that a trial is better than, above one half: an average trial has the
    weight `base`. Powers of 2, so that weights do not change with each value that is logged.

    Args:
        logged: Values of all trials, running and ended, by step.
        running: The trials that are asked about.
        maximize: Whether large values are good.
        base: The weight that trials are submitted with.
        favour: How many times that the best have, 1 to `MAX_FAVOUR`.
    """
    reached = {trial: max(values) for trial, values in logged.items() if values}
    return {
        trial: base * 2.0 ** floor(log2(favour) * max(0.0, 2 * share - 1))
        for trial in running
        for share in (_share_beaten(trial, logged, reached, maximize=maximize),)
    }


def _share_beaten(
    trial: int, logged: Mapping[int, Mapping[int, float]], reached: Mapping[int, int], *, maximize: bool
) -> float:
    """Share of the others that a trial is better than, at the newest of its steps that enough of them have reached.

    Equal ones count half; 0: it can't be judged.
    """
    for step in sorted(logged.get(trial, ()), reverse=True):
        others = [other for other, last in reached.items() if other != trial and last >= step]
        values = [value for other in others if (value := _value_at(logged[other], step)) is not None]
        if len(values) >= MIN_COMPARED:
            own = logged[trial][step]
            beaten = sum((own > value) if maximize else (own < value) for value in values)
            return (beaten + sum(own == value for value in values) / 2) / len(values)
    return 0.0


def _value_at(values: Mapping[int, float], step: int) -> float | None:
    """The value at a step, or else at the newest one before: histories are thinned."""
    before = [known for known in values if known <= step]
    return values[max(before)] if before else None
