"""What auto-tuning remembers survives in the database and on the way to the process that replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.auto_tuning.machine import (
    Decided,
    ForwardChoice,
    ReplayedGain,
    TrialStep,
    TuningAnswer,
    TuningEvent,
    TuningQuestion,
    TuningState,
)
from malletrain.allocator.auto_tuning.store import ROWS_KEPT, TuningStore
from malletrain.allocator.auto_tuning.wire import (
    TuningOrder,
    answer_from_json,
    answer_to_json,
    order_from_json,
    order_to_json,
    state_from_json,
    state_to_json,
)
from malletrain.allocator.forward_time import ForwardPolicy
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database

NUMBERS = st.floats(-1e9, 1e9)
CHOICES = st.builds(ForwardChoice, st.sampled_from(list(ForwardPolicy)), st.floats(0.1, 1e5))
TRIALS = st.builds(TrialStep, CHOICES, NUMBERS, st.integers(0, 9), st.integers(0, 9))
STATES = st.builds(
    TuningState,
    CHOICES,
    CHOICES,
    st.none() | TRIALS,
    st.dictionaries(CHOICES, NUMBERS, max_size=3),
    NUMBERS,
    st.text(max_size=20),
)
GAINS = st.builds(ReplayedGain, CHOICES, NUMBERS, st.none() | NUMBERS, NUMBERS)
ORDERS = st.builds(
    TuningOrder,
    st.builds(TuningQuestion, CHOICES, st.lists(CHOICES, max_size=4).map(tuple), st.none() | CHOICES, NUMBERS),
    NUMBERS,
    st.integers(1, 99),
    NUMBERS,
    NUMBERS,
)
ANSWERS = st.builds(
    TuningAnswer,
    st.none() | GAINS,
    st.none() | GAINS,
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
    st.text(max_size=9),
)


@given(state=STATES, order=ORDERS, answer=ANSWERS)
def test_json_keeps_everything(state: TuningState, order: TuningOrder, answer: TuningAnswer) -> None:
    assert state_from_json(state_to_json(state)) == state
    assert order_from_json(order_to_json(order)) == order
    assert answer_from_json(answer_to_json(answer)) == answer


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"best": 3}', '{"best": {"choice": {"policy": "none"}}}'])
def test_other_json_is_refused(text: str) -> None:
    for read in (answer_from_json, order_from_json, state_from_json):
        with pytest.raises(ValueError, match="expected"):
            read(text)


def test_the_newest_runs_and_the_newest_state_are_kept(tmp_path: Path) -> None:
    choice = ForwardChoice(ForwardPolicy.CONSTANT, 120.0)
    store = TuningStore(open_database(DatabaseAddress("allocator", tmp_path)))
    assert store.state() is None
    for number in range(ROWS_KEPT + 5):
        state = TuningState(choice, choice, ran_unix=float(number))
        store.add(float(number), Decided(state, TuningEvent.NOTHING, f"run {number}"))
    again = TuningStore(open_database(DatabaseAddress("allocator", tmp_path)))
    assert again.state() == TuningState(choice, choice, ran_unix=float(ROWS_KEPT + 4))
    runs = again.newest(2 * ROWS_KEPT)
    assert [runs[0].reason, runs[-1].reason] == [f"run {ROWS_KEPT + 4}", "run 5"]
