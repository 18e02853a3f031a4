"""What a search does next: each state of a trial and its job."""

from __future__ import annotations

import pytest

from malletrain.caller.searching.decisions import (
    NextSteps,
    SearchPlan,
    TrialJob,
    TrialOutcome,
    TrialStage,
    TrialView,
    failures_in_a_row,
    next_steps,
)
from malletrain.model.job_state import JobState

PLAN = SearchPlan(metric="accuracy", trials=4, at_once=2)
RUNNING = TrialView(0, TrialStage.RUNNING, "j000001")

NO_METRIC = "j000001 COMPLETED: no metric accuracy, which `malletrain.client.done` reports; reported: loss"


def told(trial: TrialView, job: TrialJob | None) -> tuple[TrialOutcome, ...]:
    return next_steps([trial], {trial.job_id: job}, PLAN).tell


def test_a_new_study_is_asked_for_as_many_trials_as_may_run() -> None:
    assert next_steps([], {}, PLAN) == NextSteps(ask=2)


def test_a_trial_without_a_job_is_submitted() -> None:
    assert next_steps([TrialView(0, TrialStage.RUNNING)], {}, PLAN) == NextSteps(submit=(0,), ask=1)


@pytest.mark.parametrize("state", [state for state in JobState if not state.final])
def test_a_trial_whose_job_goes_on_is_left_alone(state: JobState) -> None:
    assert next_steps([RUNNING], {"j000001": TrialJob(state)}, PLAN) == NextSteps(ask=1)


def test_a_trial_whose_job_could_not_be_looked_at_is_left_alone() -> None:
    assert next_steps([RUNNING], {}, PLAN) == NextSteps(ask=1)


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (TrialJob(JobState.COMPLETED, {"accuracy": 0.5, "loss": 1.0}), TrialOutcome(0, TrialStage.COMPLETE, 0.5)),
        (
            TrialJob(JobState.COMPLETED, {"loss": 1.0}),
            TrialOutcome(0, TrialStage.FAIL, None, NO_METRIC),
        ),
        (
            TrialJob(JobState.COMPLETED, {"accuracy": float("nan")}),
            TrialOutcome(0, TrialStage.FAIL, None, "j000001 COMPLETED: metric accuracy is nan"),
        ),
        (
            TrialJob(JobState.FAILED, {}, "exit status 1\nlast line"),
            TrialOutcome(0, TrialStage.FAIL, None, "j000001 FAILED: exit status 1 last line"),
        ),
        (TrialJob(JobState.CANCELLED, {}, "by a"), TrialOutcome(0, TrialStage.FAIL, None, "j000001 CANCELLED: by a")),
        (None, TrialOutcome(0, TrialStage.FAIL, None, "JobManager no longer has j000001")),
    ],
)
def test_what_comes_of_a_job_that_has_ended(job: TrialJob | None, outcome: TrialOutcome) -> None:
    assert told(RUNNING, job) == (outcome,)


def test_a_pruned_trial_is_cancelled_and_then_told() -> None:
    pruned = TrialView(0, TrialStage.RUNNING, "j000001", is_pruned=True)
    steps = next_steps([pruned], {"j000001": TrialJob(JobState.RUNNING)}, PLAN)
    assert (steps.cancel, steps.tell, steps.ask) == (("j000001",), (), 1)
    (outcome,) = told(pruned, TrialJob(JobState.CANCELLED))
    assert outcome.stage is TrialStage.PRUNED
    # It was faster than its cancellation.
    assert told(pruned, TrialJob(JobState.COMPLETED, {"accuracy": 1.0})) == (TrialOutcome(0, TrialStage.COMPLETE, 1.0),)


def ended(number: int, stage: TrialStage = TrialStage.COMPLETE, *, is_counted: bool = True) -> TrialView:
    return TrialView(number, stage, f"j00000{number + 1}", is_counted=is_counted)


def test_it_is_over_when_all_trials_have_ended() -> None:
    done = [ended(0), ended(1, TrialStage.FAIL), ended(2, TrialStage.PRUNED)]
    assert next_steps(done, {}, PLAN) == NextSteps(ask=1)
    last = TrialView(3, TrialStage.RUNNING, "j000004")
    assert next_steps([*done, last], {"j000004": TrialJob(JobState.RUNNING)}, PLAN) == NextSteps()
    over = next_steps([*done, last], {"j000004": TrialJob(JobState.COMPLETED, {"accuracy": 1.0})}, PLAN)
    assert (over.is_over, len(over.tell)) == (True, 1)


def test_trials_that_were_cancelled_with_the_search_are_not_counted() -> None:
    trials = [ended(number) for number in range(3)] + [ended(3, TrialStage.FAIL, is_counted=False)]
    assert next_steps(trials, {}, PLAN) == NextSteps(ask=1)


def test_trials_that_wait_are_asked_for() -> None:
    assert next_steps([TrialView(0, TrialStage.WAITING)], {}, PLAN) == NextSteps(ask=2)


def test_failures_in_a_row() -> None:
    bad, good = TrialOutcome(0, TrialStage.FAIL), TrialOutcome(1, TrialStage.COMPLETE, 1.0)
    assert failures_in_a_row(2, [bad]) == 3
    assert failures_in_a_row(2, [bad, good]) == 0
    assert failures_in_a_row(2, [good, bad, bad]) == 2
    assert failures_in_a_row(2, []) == 2
