"""What the benchmark on a real Slurm makes of its notes."""

from __future__ import annotations

import pytest

from benchmarks.impact.figures import (
    Ran,
    max_in_window,
    percentile,
    plain_deltas,
    reclaims,
    shared_seconds,
    start_deltas,
    waited_in_vain,
)

NODES = 4


def test_a_job_waits_in_vain_from_when_its_nodes_are_free() -> None:
    first = Ran(0, 3, 0.0, 0.2, 10.0)
    second = Ran(1, 2, 1.0, 10.5, 20.0)
    assert waited_in_vain(first, [first, second], NODES) == pytest.approx(0.2)
    assert waited_in_vain(second, [first, second], NODES) == pytest.approx(0.5)


def test_a_job_behind_another_one_waits_for_nothing_of_ours() -> None:
    first = Ran(0, 4, 0.0, 2.0, 5.0)
    second = Ran(1, 1, 0.0, 5.1, 6.0)
    assert waited_in_vain(second, [first, second], NODES) == pytest.approx(0.1)


def test_jobs_that_start_in_one_look_may_have_their_stamps_in_either_order() -> None:
    first = Ran(0, 2, 0.0, 5.004, 9.0)
    second = Ran(1, 1, 0.0, 5.0, 9.0)
    assert waited_in_vain(second, [first, second], NODES) == 0.0


def test_each_second_is_counted_once_and_never_more_than_a_job_started_later() -> None:
    without = [Ran(0, 4, 0.0, 0.0, 5.0), Ran(1, 4, 0.0, 5.0, 9.0)]
    with_us = [Ran(0, 4, 0.0, 1.0, 6.0), Ran(1, 4, 0.0, 6.0, 10.0)]
    assert plain_deltas(without, with_us) == [1.0, 1.0]
    assert start_deltas(without, with_us, NODES) == pytest.approx([1.0, 0.0])


def test_a_reclaim_ends_when_the_node_is_empty_next() -> None:
    found = reclaims({"n1": [10.0, 20.0]}, {"n1": [9.0, 10.3, 20.1], "n2": [10.1]})
    assert found == [(10.0, pytest.approx(0.3)), (20.0, pytest.approx(0.1))]


def test_node_seconds_are_shared_where_both_were_there() -> None:
    job = Ran(0, 2, 0.0, 1.0, 5.0, ("n1", "n2"), began_at=100.0)
    spans = {"n1": [(90.0, 101.25), (104.5, 200.0)], "n2": [(90.0, 101.0)], "n3": [(0.0, 200.0)]}
    assert shared_seconds([job], spans) == pytest.approx(0.75)


def test_most_in_a_window_and_nearest_rank() -> None:
    assert max_in_window([0.0, 1.0, 1.5, 3.0], 1.0) == 2
    assert max_in_window([0.0, 1.0, 2.0], 1.0) == 1
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([], 0.5) is None
