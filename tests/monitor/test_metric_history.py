"""Histories of training metrics: what remains of them when they are thinned, and which steps values get."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.monitor.machine.progress import NO_POSITION, RecordColumns, ReportedBatch
from malletrain.monitor.training_metrics.history import (
    MAX_POINTS,
    HistoryEnd,
    HistoryPoint,
    LoggedValue,
    SamplesByTime,
    at_most,
    begin_history,
    thin_history,
    with_steps,
)


def logged(values: Sequence[float]) -> list[LoggedValue]:
    return [LoggedValue("loss", index + 1, 100.0 + index, 10 * index, value) for index, value in enumerate(values)]


def history_of(values: Sequence[float]) -> tuple[list[HistoryPoint], HistoryEnd]:
    """As Monitor's store keeps it."""
    first, *others = logged(values)
    closed: list[HistoryPoint] = []
    end = begin_history(first)
    for value in others:
        end, point = end.after(value)
        closed += [] if point is None else [point]
        assert len(closed) == end.closed < MAX_POINTS
        if end.is_full:
            closed, end = thin_history(closed, end)
    return closed, end


def check(points: Sequence[HistoryPoint], values: Sequence[float]) -> None:
    all_of = logged(values)
    assert sum(point.values for point in points) == len(values)
    assert all(left.first + left.values == right.first for left, right in pairwise(points))
    for point in points:
        those = values[point.first : point.first + point.values]
        last = all_of[point.first + point.values - 1]
        assert (point.least, point.most) == (min(those), max(those))
        assert (point.step, point.unix_seconds, point.value) == (last.step, last.unix_seconds, last.value)
    assert (points[0].values, points[0].value, points[-1].value) == (1, values[0], values[-1])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.integers(1, 120))
def test_every_value_is_part_of_a_point_and_first_last_least_and_greatest_remain(some: list[float], times: int) -> None:
    values = (some * times)[:4000]
    closed, end = history_of(values)
    points = [*closed, end.last]
    assert len(points) <= MAX_POINTS
    check(points, values)
    assert end.last.values <= end.stride
    assert all(point.values == end.stride for point in closed[1:])


@given(st.integers(1, 3000), st.integers(2, MAX_POINTS))
def test_fewer_points_are_the_same_history(count: int, limit: int) -> None:
    values = [float(index % 17) for index in range(count)]
    closed, end = history_of(values)
    shown = at_most([*closed, end.last], limit)
    assert len(shown) <= limit
    check(shown, values)


@given(st.integers(1, 1500))
def test_a_history_can_be_thinned_at_any_time(count: int) -> None:
    values = [float(index) for index in range(count)]
    closed, end = history_of(values)
    again, after = thin_history(closed, end)
    check([*again, after.last], values)
    assert after.closed == len(again)


def test_a_long_run_keeps_between_half_and_all_of_the_points() -> None:
    for count in (512, 513, 5_000, 20_000):
        closed, _ = history_of([0.0] * count)
        assert MAX_POINTS // 2 <= len(closed) + 1 <= MAX_POINTS


def batch(times: Sequence[float], samples: Sequence[int], positions: Sequence[int]) -> ReportedBatch:
    columns = RecordColumns(list(times), list(samples), list(positions), [1] * len(times), [])
    return ReportedBatch("j1", "r1", 1, columns, 1, 0)


@pytest.mark.parametrize(
    ("positions", "done"),
    [
        ([-1, -1, -1], 330),
        ([110, 220, 330], 330),
        ([110, 220, 330], 999),  # what the trainer tells counts
    ],
)
def test_without_a_step_a_value_is_at_the_samples_that_were_done_when_it_was_logged(
    positions: list[int], done: int
) -> None:
    batches = [batch([10.0, 20.0], [110, 110], positions[:2]), batch([30.0], [110], positions[2:])]
    values = [LoggedValue("loss", n, at, step, 0.5) for n, at, step in ((1, 25.0, None), (2, 30.0, None), (3, 5.0, 7))]
    known = SamplesByTime()
    known.add(batches, done)
    assert [value.step for value in with_steps(values, known)] == [220, 330, 7]
    assert known.at(1.0) == 0
    nothing = SamplesByTime()
    nothing.add([], 40)
    assert [value.step for value in with_steps(values[:1], nothing)] == [40]


def test_values_that_come_after_their_batches_are_where_they_were_logged() -> None:
    known = SamplesByTime()
    for number in range(1, 6):
        known.add([batch([float(number)], [10], [NO_POSITION])], 10 * number)
    assert [known.at(number + 0.5) for number in range(6)] == [0, 10, 20, 30, 40, 50]


def test_what_is_known_of_the_past_is_bounded() -> None:
    known = SamplesByTime()
    for number in range(1, 5001):
        known.add([batch([float(number)], [10], [NO_POSITION])], 10 * number)
    assert known.at(4000.5) == 40000
    assert known.at(1.0) == known.at(2000.0) == 10 * (5000 - 2048)
