"""What a log of batches says about a change of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rescaling.batches import Batch, Change, change, parse

LOG = "10.000000 2 1 7.1\n10.020000 2 2 7.1\n10.320000 3 3 7.2\n10.340000 3 4 7.2\n10.360000 "


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    assert parse(LOG)[-1] == Batch(10.34, 3, 4, "7.2")
    assert parse("10.0 2") == []


def test_a_broken_line_is_refused() -> None:
    with pytest.raises(ValueError):
        parse("10.0 2\n")


def test_latency_counts_from_the_command_and_pause_from_the_last_batch() -> None:
    found = change(parse(LOG), since=10.015, size=3)
    assert found is not None
    assert found.latency == pytest.approx(0.305)
    assert found.pause == pytest.approx(0.3)


def test_as_long_as_the_world_is_the_old_one_nothing_has_changed() -> None:
    assert change(parse(LOG), since=10.33, size=3) is None
    assert change(parse(LOG), since=10.015, size=4) is None
    assert change([], since=0.0, size=None) is None
    assert change(parse(LOG), since=9.0, size=None) is None


def test_a_world_of_the_same_size_is_another_world() -> None:
    log = [Batch(1.0, 2, 1, "a.1"), Batch(1.5, 2, 2, "a.2")]
    assert change(log, since=1.25, size=None) == Change(latency=0.25, pause=0.5)


def test_a_world_in_between_does_not_shorten_the_pause() -> None:
    log = [Batch(1.0, 2, 1, "a.1"), Batch(2.0, 1, 2, "a.2"), Batch(2.5, 3, 3, "a.3")]
    assert change(log, since=1.25, size=3) == Change(latency=1.25, pause=1.5)


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(1, 3)), min_size=2, max_size=30), st.floats(0.0, 60.0))
def test_a_change_is_never_before_its_command(steps: list[tuple[float, int]], since: float) -> None:
    log: list[Batch] = []
    now, world = 0.0, 0
    for number, (step, size) in enumerate(steps):
        now += step
        world += number > 0 and size != log[-1].size
        log.append(Batch(now, size, number, f"7.{world}"))
    found = change(log, since, None)
    if found is not None:
        assert found.latency > 0
        assert found.pause > 0
