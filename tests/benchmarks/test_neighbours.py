"""How much slower a main job is beside others, from rounds."""

from __future__ import annotations

import pytest

from benchmarks.impact.neighbours import Sample, slowdowns


def test_each_stretch_is_compared_with_those_alone_around_it() -> None:
    rounds = [
        {"alone": Sample(100.0, base, 1.0), "beside": Sample(50.0, 0.5 * beside, 0.5)}
        for base, beside in ((1.0, 1.2), (1.0, 1.1), (1.0, 1.3), (1.0, 1.2), (1.0, 9.0))
    ]
    found = slowdowns(rounds, "alone", lambda one: one.wall_seconds)
    assert found["alone"] == pytest.approx((0.0, 0.0, 0.0))
    assert found["beside"].median == pytest.approx(0.2)
    assert found["beside"].low < 0.2 < found["beside"].high
    assert slowdowns(rounds, "alone", lambda one: one.cpu_seconds)["beside"] == pytest.approx((0.0, 0.0, 0.0))


def test_a_machine_that_gets_slower_meanwhile_is_no_slowdown() -> None:
    times = [1.0 + 0.1 * number for number in range(11)]
    rounds = [
        {"alone": Sample(1.0, time, 1.0), "beside": Sample(1.0, time + 0.05, 1.0)} for time in times
    ]  # beside comes after alone, half a round later
    assert slowdowns(rounds, "alone", lambda one: one.wall_seconds)["beside"].median == pytest.approx(0.0)
