"""A loop that saves on request also saves without one, and not for more than a twentieth of its time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.session import CommitInterval


def saves(step: float, save: float, steps: int, every: float = 60.0, requested_at: int = -1) -> list[float]:
    """When a loop saves."""
    interval, now, found = CommitInterval(), 1000.0, []
    for number in range(steps):
        now += step
        if interval.due(now, every, requested=number == requested_at):
            found.append(now)
            now += save
    return found


def test_once_a_minute() -> None:
    assert saves(0.5, 0.01, 400) == pytest.approx([1060.5, 1121.01, 1181.52])


def test_a_request_is_answered_at_once_and_begins_a_new_minute() -> None:
    assert saves(1.0, 0.0, 120, requested_at=30) == [1031.0, 1092.0]


def test_a_clock_that_steps_back_begins_a_new_minute() -> None:
    interval = CommitInterval()
    assert not any(interval.due(1000.0 + second, 60.0, requested=False) for second in range(59))
    assert not any(interval.due(10.0 + second, 60.0, requested=False) for second in range(60))
    assert interval.due(71.0, 60.0, requested=False)


@given(step=st.floats(0.01, 30.0), save=st.floats(0.0, 300.0), every=st.floats(1.0, 600.0))
def test_saves_take_a_twentieth_of_the_time_at_most(step: float, save: float, every: float) -> None:
    found = saves(step, save, 3000, every)
    for earlier, later in pairwise(found[1:]):
        assert later - earlier >= max(every, 0.99 * save / 0.05)
