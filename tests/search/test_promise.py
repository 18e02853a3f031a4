from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.caller.searching.decisions import MAX_FAVOUR, MIN_COMPARED, promising_weights

OTHERS = {number: {1: 0.1 * number, 2: 0.2 * number} for number in range(1, 5)}


def weight(values: dict[int, float], others: dict[int, dict[int, float]] = OTHERS, *, maximize: bool = True) -> float:
    logged = {0: values, **others}
    return promising_weights(logged, [0], maximize=maximize, base=2.0, favour=8.0)[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.9, 16.0), (0.7, 4.0), (0.5, 2.0), (0.0, 2.0)],
    ids=["better than all", "than three of four", "than two of four", "than none"],
)
def test_the_better_half_is_favoured_by_its_rank(value: float, expected: float) -> None:
    assert weight({2: value}) == expected


def test_where_small_values_are_good_the_order_is_the_other_one() -> None:
    assert weight({2: 0.0}, maximize=False) == 16.0
    assert weight({2: 0.9}, maximize=False) == 2.0


def test_trials_are_compared_at_a_step_that_enough_others_have_reached() -> None:
    assert weight({1: 0.0, 9: 0.9}) == 2.0, "it is far ahead, and was the worst where the others are"
    assert weight({1: 0.9, 9: 0.0}) == 16.0
    young = {number: {1: 0.5} for number in range(1, MIN_COMPARED)}
    assert weight({1: 0.9}, young) == 2.0, "too few others"
    assert weight({}) == 2.0


def test_thinned_histories_count_with_their_newest_value_before() -> None:
    thinned = {number: {1: 0.5, 9: 0.5} for number in range(1, 5)}
    assert weight({4: 0.6}, thinned) == 16.0
    late = {number: {5: 0.5} for number in range(1, 5)}
    assert weight({4: 0.6}, late) == 2.0, "nothing is known of them before"


VALUES = st.dictionaries(st.integers(0, 5), st.floats(-10, 10), max_size=4)


@given(st.dictionaries(st.integers(0, 8), VALUES, max_size=8), st.floats(1, MAX_FAVOUR), st.booleans())
def test_weights_lie_between_the_base_and_its_favour(
    logged: dict[int, dict[int, float]], favour: float, maximize: bool
) -> None:
    found = promising_weights(logged, logged, maximize=maximize, base=3.0, favour=favour)
    assert found.keys() == logged.keys()
    assert all(3.0 <= value <= 3.0 * favour for value in found.values())
