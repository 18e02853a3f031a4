"""What auto-tuning does next: one step at a time, within bounds, and back where the next hours contradict it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.auto_tuning.machine import (
    BARRED_RUNS,
    CHECKS,
    MIN_GAIN,
    AutoTune,
    Decided,
    ForwardChoice,
    ReplayedGain,
    TrialStep,
    TuningAnswer,
    TuningBounds,
    TuningEvent,
    TuningQuestion,
    TuningState,
    after_failure,
    decide,
    one_step_from,
    question,
    resume,
    seconds_until_due,
)
from malletrain.allocator.problem.forward_time import ForwardPolicy

HOUR = 3600.0
PRESENT = ForwardChoice(ForwardPolicy.CONSTANT, 120.0)
SHORTER, LONGER = replace(PRESENT, seconds=60.0), replace(PRESENT, seconds=240.0)
EXPECTED = replace(PRESENT, policy=ForwardPolicy.EXPECTED)
BOUNDS = TuningBounds(30.0, 960.0)
FRESH = TuningState(PRESENT, PRESENT)
CHOICES = st.builds(ForwardChoice, st.sampled_from(list(ForwardPolicy)), st.floats(1.0, 2000.0))
ANSWERS = st.one_of(
    st.none(),
    st.tuples(
        st.integers(0, 3), st.floats(-0.2, 0.2), st.one_of(st.none(), st.floats(0.0, 0.1)), st.floats(-0.05, 0.05)
    ),
)


def answered(state: TuningState, answer: TuningAnswer, now: float, mode: AutoTune = AutoTune.APPLY) -> Decided:
    return decide(state, question(state, BOUNDS, now), answer, mode, now, HOUR)


def better(choice: ForwardChoice, mean: float = 0.05, half_width: float | None = 0.01) -> TuningAnswer:
    return TuningAnswer(ReplayedGain(choice, mean, half_width, 24.0))


def back(mean: float) -> TuningAnswer:
    return TuningAnswer(back=ReplayedGain(PRESENT, mean, None, 1.0))


@given(configured=CHOICES, bounds=st.tuples(st.floats(1.0, 500.0), st.floats(1.0, 2000.0)), answers=st.lists(ANSWERS))
def test_one_step_at_a_time_within_bounds_and_never_two_on_trial(
    configured: ForwardChoice,
    bounds: tuple[float, float],
    answers: list[tuple[int, float, float | None, float] | None],
) -> None:
    """Whatever the runs answer, or fail with."""
    permitted = TuningBounds(min(bounds), max(bounds))
    state, now = TuningState(configured, configured), 0.0
    for found in answers:
        now += HOUR
        before, asked = state, question(state, permitted, now)
        assert not (asked.candidates and asked.before), "a step is watched, or the next one is looked for"
        if found is None:
            decided = after_failure(state, "killed", now, HOUR)
        else:
            number, mean, width, since = found
            tried = asked.candidates
            answer = TuningAnswer(
                ReplayedGain(tried[number % len(tried)], mean, width, 24.0) if tried else None,
                ReplayedGain(asked.before, since, None, 1.0) if asked.before else None,
            )
            decided = decide(state, asked, answer, AutoTune.APPLY, now, HOUR)
        state = decided.state
        assert state.configured == configured
        assert state.ran_unix == now
        if state.in_force != before.in_force:
            assert decided.event in (TuningEvent.STEP, TuningEvent.WENT_BACK)
            assert decided.reason
        if decided.event is TuningEvent.STEP:
            assert before.trial is None
            assert state.in_force in one_step_from(before.in_force)
            assert permitted.permit(state.in_force) or state.in_force == configured
            assert state.trial == TrialStep(before.in_force, now)
        if decided.event is TuningEvent.WENT_BACK:
            assert before.trial is not None
            assert state.in_force == before.trial.before
            assert before.in_force not in question(state, permitted, now).candidates


def test_a_step_that_the_next_hours_contradict_is_taken_back_and_not_tried_again_for_a_day() -> None:
    stepped = answered(FRESH, better(LONGER), HOUR)
    assert (stepped.event, stepped.state.in_force) == (TuningEvent.STEP, LONGER)
    assert question(stepped.state, BOUNDS, 2 * HOUR) == TuningQuestion(LONGER, (), PRESENT, HOUR)
    watched = answered(stepped.state, back(-0.01), 2 * HOUR)
    assert (watched.event, watched.state.in_force) == (TuningEvent.WATCHED, LONGER)
    gone = answered(watched.state, back(MIN_GAIN), 3 * HOUR)
    assert (gone.event, gone.state.in_force, gone.state.trial) == (TuningEvent.WENT_BACK, PRESENT, None)
    assert "contradict" in gone.reason
    assert gone.state.why == "", "what is configured is in force"
    assert LONGER not in question(gone.state, BOUNDS, (3 + BARRED_RUNS - 1) * HOUR).candidates
    assert LONGER in question(gone.state, BOUNDS, (3 + BARRED_RUNS) * HOUR).candidates


def test_a_step_that_is_not_contradicted_is_kept_and_the_next_one_is_looked_for() -> None:
    state = answered(FRESH, better(LONGER), 0.0).state
    for look in range(1, CHECKS):
        decided = answered(state, back(0.0), look * HOUR)
        assert decided.event is TuningEvent.WATCHED
        state = decided.state
    kept = answered(state, back(MIN_GAIN / 2), CHECKS * HOUR)
    assert (kept.event, kept.state.in_force, kept.state.trial) == (TuningEvent.KEPT, LONGER, None)
    assert question(kept.state, BOUNDS, 7 * HOUR).candidates[:2] == (PRESENT, replace(PRESENT, seconds=480.0))


def test_hours_without_training_neither_keep_nor_contradict_a_step() -> None:
    state = answered(FRESH, better(LONGER), 0.0).state
    for hour in range(1, 3 * CHECKS):
        decided = answered(state, TuningAnswer(note="nothing trained"), hour * HOUR)
        assert decided.event is TuningEvent.WATCHED
        state = decided.state
    assert state.trial is not None
    assert state.trial.checks == 0


def test_a_step_that_cannot_be_looked_at_is_taken_back() -> None:
    state = answered(FRESH, better(LONGER), 0.0).state
    for hour in range(1, CHECKS):
        decided = after_failure(state, "no memory", hour * HOUR, HOUR)
        assert (decided.event, decided.state.in_force) == (TuningEvent.FAILED, LONGER)
        state = decided.state
    assert after_failure(state, "no memory", CHECKS * HOUR, HOUR).state.in_force == PRESENT
    assert after_failure(FRESH, "no memory", HOUR, HOUR).state == replace(FRESH, ran_unix=HOUR)


@pytest.mark.parametrize(
    "answer",
    [
        TuningAnswer(note="0 parts"),
        TuningAnswer(),
        better(LONGER, MIN_GAIN / 2, 0.0),
        better(LONGER, 0.05, 0.06),
        better(LONGER, 0.05, None),
    ],
)
def test_what_is_little_or_doubtful_changes_nothing(answer: TuningAnswer) -> None:
    decided = answered(FRESH, answer, HOUR)
    assert (decided.event, decided.state.in_force) == (TuningEvent.NOTHING, PRESENT)
    assert decided.reason


def test_advise_tells_and_changes_nothing() -> None:
    decided = answered(FRESH, better(LONGER), HOUR, AutoTune.ADVISE)
    assert decided.event is TuningEvent.ADVICE
    assert "240 s in place of 120 s: +5.0% ± 1.0% samples in 24.0 h" in decided.reason
    assert decided.state == replace(FRESH, ran_unix=HOUR)


def test_an_answer_to_another_question_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of the candidates"):
        answered(FRESH, better(replace(PRESENT, seconds=960.0)), HOUR)


def test_steps_lead_to_neighbours_within_bounds() -> None:
    assert one_step_from(PRESENT)[:2] == [SHORTER, LONGER]
    assert one_step_from(replace(PRESENT, seconds=77.0))[:2] == [SHORTER, PRESENT]
    assert one_step_from(EXPECTED) == [PRESENT, replace(PRESENT, policy=ForwardPolicy.SURVIVAL)]
    asked = question(FRESH, TuningBounds(120.0, 120.0), 0.0)
    assert {choice.policy for choice in asked.candidates} == {ForwardPolicy.SURVIVAL, ForwardPolicy.EXPECTED}
    away = replace(FRESH, in_force=LONGER)
    assert PRESENT in question(away, TuningBounds(200.0, 960.0), 0.0).candidates, "the operator's own is permitted"


def test_after_a_start_it_goes_on_unless_the_operator_has_changed_something() -> None:
    state = replace(answered(FRESH, better(LONGER), HOUR).state, barred={SHORTER: 9e9})
    assert resume(state, PRESENT, AutoTune.APPLY, BOUNDS) == (state, "")
    assert resume(None, PRESENT, AutoTune.APPLY, BOUNDS) == (FRESH, "")
    for configured, mode, bounds in (
        (SHORTER, AutoTune.APPLY, BOUNDS),
        (PRESENT, AutoTune.ADVISE, BOUNDS),
        (PRESENT, AutoTune.OFF, BOUNDS),
        (PRESENT, AutoTune.APPLY, TuningBounds(30.0, 200.0)),
    ):
        found, why = resume(state, configured, mode, bounds)
        assert (found.configured, found.in_force, found.trial) == (configured, configured, None)
        assert found.ran_unix == HOUR, "a start is no reason for a run"
        assert f"back to {configured}" in why


def test_runs_are_due_every_interval_whatever_the_clock_does() -> None:
    assert seconds_until_due(FRESH, 1e9, HOUR) == pytest.approx(0.1 * HOUR)
    ran = replace(FRESH, ran_unix=1e9)
    assert seconds_until_due(ran, 1e9 + 600, HOUR) == HOUR - 600
    assert seconds_until_due(ran, 1e9 + 2 * HOUR, HOUR) == 0
    assert seconds_until_due(ran, 1e9 - 10 * HOUR, HOUR) == HOUR
