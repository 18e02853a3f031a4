from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.machine.observations import NodeFacts, Observation
from malletrain.scavenger.machine.stays import StayEstimator
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.mixed import merge
from malletrain.scavenger.sources.schedulers.idle_ages import KEPT_LENGTHS, IdleAges
from malletrain.scavenger.sources.schedulers.query import Query, QueryTiming
from tests.support.clocks import ManualClock


class EnoughError(Exception):
    """Ends an endless loop."""


async def test_questions_keep_their_interval_and_failures_are_spaced_out() -> None:
    clock = ManualClock(1000.0)
    answers = iter(["1", "2", None, None, None, None, None, "3", "4"])
    asked: list[float] = []

    async def run(argv: Sequence[str], timeout_seconds: float) -> str:
        assert (list(argv), timeout_seconds) == (["ask"], 3.0)
        asked.append(clock.time())
        clock.advance(0.5)
        answer = next(answers, "")
        if answer is None:
            raise SourceError("no contact")
        return answer

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if len(asked) == 9:
            raise EnoughError

    query = Query("slurm", "nodes", ["ask"], int, QueryTiming(2.0, 3.0, 15.0), clock, run, sleep, chance=lambda: 0.0)
    assert query.age_seconds == float("inf")
    with pytest.raises(EnoughError):
        await query.follow()
    assert [later - earlier for earlier, later in pairwise(asked)] == [2.5, 2.5, 4.5, 8.5, 15.5, 15.5, 15.5, 2.5]
    status = query.status()
    assert (status.asked, status.failed, status.failures_in_a_row, status.error) == (9, 5, 0, "")
    assert query.answer == 4
    assert query.fresh(2.5) == 4
    assert query.fresh(1.0) is None


@given(failures=st.integers(0, 10_000))
def test_pauses_are_bounded(failures: int) -> None:
    assert 2.0 <= QueryTiming(2.0, 1.0, 60.0).pause(failures) <= 60.0
    # An interval that is longer than the longest pause is kept all the same.
    assert QueryTiming(600.0, 1.0, 60.0).pause(failures) == 600.0
    # The first answer is not waited for so long.
    assert QueryTiming(600.0, 1.0, 60.0).pause(failures, answered=False) == (60.0 if failures else 600.0)


def test_ages_survive_a_short_absence_only() -> None:
    ages = IdleAges()
    ages.update(100.0, ["a", "b"])
    ages.update(160.0, ["a"])
    content = ages.content(170.0)
    assert ages.lengths == (60.0,)
    assert IdleAges.restored(content, 200.0).update(200.0, ["a", "c"]) == {"a": 100.0, "c": 200.0}
    late = IdleAges.restored(content, 5000.0)
    assert late.update(5000.0, ["a"]) == {"a": 5000.0}
    assert late.lengths == (60.0,)
    for garbage in ({}, {"time": "x", "idle_since": {"a": 1}}, {"time": 1, "idle_since": [], "lengths": {"a": 1}}):
        assert IdleAges.restored(garbage, 2.0).update(2.0, ["a"]) == {"a": 2.0}


def test_only_the_newest_lengths_are_kept() -> None:
    ages = IdleAges()
    for turn in range(KEPT_LENGTHS + 5):
        ages.update(10.0 * turn, ["a"] if turn % 2 == 0 else [])
    assert len(ages.lengths) <= KEPT_LENGTHS


def test_a_known_end_bounds_the_expected_stay() -> None:
    stays = StayEstimator([100.0 + length for length in range(100)], horizon_seconds=3600.0)
    stays.observe(0.0, {"a": 0.0})
    free = stays.expected_stay(10.0, 0.0)
    assert 120 < free < 160
    assert stays.expected_stay(10.0, 0.0, 40.0) == pytest.approx(30.0, abs=0.5)
    assert stays.expected_stay(10.0, 0.0, 1e9) == free
    assert stays.expected_stay(10.0, 0.0, 5.0) == 0.0
    # Without any fragment the end is all that is known.
    empty = StayEstimator(horizon_seconds=3600.0)
    assert empty.expected_stay(10.0, 0.0) == 0.0
    assert empty.expected_stay(10.0, 0.0, 40.0) == 30.0


def test_pictures_are_merged() -> None:
    first = Observation(
        10.0, {"a": 1.0, "b": 2.0}, ends={"b": 90.0}, facts={"a": NodeFacts("x")}, known=frozenset("abc")
    )
    second = Observation(12.0, {"b": 5.0, "d": 3.0}, ends={"b": 80.0}, known=frozenset("abd"), stale=True)
    merged = merge([first, second], source_count=2)
    # The second knows a and does not call it idle.
    assert merged.idle == {"b": 5.0, "d": 3.0}
    assert merged.ends == {"b": 80.0}
    assert (merged.time, merged.stale, merged.ended) == (12.0, True, False)
    assert merged.known == frozenset("abcd")
