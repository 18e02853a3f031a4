from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.backoff import Backoff, pause_after

SECONDS = st.floats(0, 1e300)


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert (backoff.active, backoff.seconds) == (False, 0.0)
    assert [backoff.fail() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    assert (backoff.active, backoff.seconds) == (True, 3.0)
    backoff.succeed()
    assert (backoff.active, backoff.seconds) == (False, 0.0)
    assert backoff.fail() == 0.5


def test_the_first_pause_is_no_longer_than_the_longest() -> None:
    assert Backoff(5.0, 1.0).fail() == 1.0


def test_a_pause_by_the_number_of_failures() -> None:
    assert [pause_after(failures, 0.5, 3.0) for failures in (-1, 0, 1, 2, 3, 4, 5)] == [0, 0, 0.5, 1, 2, 3, 3]


def test_no_number_of_failures_is_too_large() -> None:
    assert pause_after(10**30, 0.5, 3.0) == 3.0
    assert pause_after(10**30, 0.0, 3.0) == 0.0
    assert pause_after(5000, 1e300, 1e301) == 1e301


@given(st.integers(1, 3000), SECONDS, SECONDS)
def test_pauses_grow_and_are_never_longer_than_the_longest(failures: int, first: float, longest: float) -> None:
    pause = pause_after(failures, first, longest)
    assert min(first, longest) <= pause <= longest
    assert pause_after(failures - 1, first, longest) <= pause


@given(st.integers(1, 500), st.floats(1e-9, 1e9), SECONDS)
def test_each_pause_is_twice_the_one_before_or_the_longest(failures: int, first: float, longest: float) -> None:
    twice = 2 * pause_after(failures, first, longest)
    assert pause_after(failures + 1, first, longest) == min(twice, longest)


@given(st.integers(1, 100), st.floats(1e-9, 1e9), SECONDS)
def test_counted_one_by_one_they_are_the_same(failures: int, first: float, longest: float) -> None:
    backoff = Backoff(first, longest)
    pauses = [backoff.fail() for _ in range(failures)]
    assert pauses == [pause_after(number, first, longest) for number in range(1, failures + 1)]
