"""What auto-tuning remembers survives in the database and on the way to the process that replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.auto_tuning.documents import (
    TuningOrder,
    from_json,
    to_json,
)
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
from malletrain.allocator.problem.forward_time import ForwardPolicy
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
    assert from_json(TuningState, to_json(state)) == state
    assert from_json(TuningOrder, to_json(order)) == order
    assert from_json(TuningAnswer, to_json(answer)) == answer


def test_what_earlier_versions_have_stored_can_be_read() -> None:
    choice = ForwardChoice(ForwardPolicy.CONSTANT, 120.0)
    other = ForwardChoice(ForwardPolicy.EXPECTED, 60.0)
    text = (
        '{"configured": {"policy": "constant", "seconds": 120.0}, "in_force": {"policy": "expected", "seconds": 60.0}, '
        '"trial": {"before": {"policy": "constant", "seconds": 120.0}, "since_unix": 1.0, "checks": 2, "failures": 0}, '
        '"barred": [[{"policy": "constant", "seconds": 120.0}, 5.0]], "ran_unix": 3.0, "why": "so"}'
    )
    expected = TuningState(choice, other, TrialStep(choice, 1.0, 2), {choice: 5.0}, 3.0, "so")
    assert from_json(TuningState, text) == expected
    assert from_json(TuningState, text.replace('[[{"policy": "constant", "seconds": 120.0}, 5.0]]', "[]")).barred == {}


@pytest.mark.parametrize("text", ["", "[]", "null", '{"best": 3}', '{"best": {"choice": {"policy": "none"}}}'])
@pytest.mark.parametrize("kind", [TuningAnswer, TuningOrder, TuningState])
def test_other_json_is_refused(kind: type[object], text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        from_json(kind, text)


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
