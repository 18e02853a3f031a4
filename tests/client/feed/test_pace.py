"""What a feed measures of its trainings and its processes."""

from __future__ import annotations

import pytest

from malletrain.client.feeding.pace import PaceMeter, SupplyMeter

STEP = 0.01


class Steps:
    """Trainings that take batches of 10 in steps of their own, while one process prepares 100 samples/s."""

    def __init__(self) -> None:
        self.meter = PaceMeter()
        self.now = 100.0
        self.prepared = 0

    def run(self, seconds: float, **shares: float) -> None:
        """Have trainings (`t1`, `t2`) wait for some share of each tenth of a second."""
        for _ in range(round(seconds / 0.1)):
            for tick in range(10):
                waiting = [int(name[1:]) for name, share in shares.items() if tick >= 10 * (1 - share) - 1e-9]
                self.meter.look(self.now, self.prepared, [int(name[1:]) for name in shares], waiting)
                self.now += STEP
            self.prepared += 10


def test_demand_is_the_pace_without_waiting() -> None:
    steps = Steps()
    steps.run(3, t1=0.8)
    demand = steps.meter.demand
    assert demand is not None
    assert demand.rate == pytest.approx(500, rel=0.02)
    assert demand.waited == pytest.approx(0.8, abs=0.01)


def test_the_training_that_waits_least_sets_the_pace() -> None:
    steps = Steps()
    steps.run(3, t1=0.8, t2=0.5)
    demand = steps.meter.demand
    assert demand is not None
    assert demand.rate == pytest.approx(200, rel=0.02)
    # It leaves, and the other one may go at its own pace.
    steps.run(6, t1=0.8)
    demand = steps.meter.demand
    assert demand is not None
    assert demand.rate == pytest.approx(500, rel=0.02)


def test_a_training_that_never_waits_takes_what_is_prepared() -> None:
    steps = Steps()
    steps.run(5, t1=0.0, t2=0.3)
    demand = steps.meter.demand
    assert demand is not None
    assert demand.rate == pytest.approx(100, rel=0.05)
    assert demand.waited == 0


def test_the_start_of_the_feed_is_no_wait_for_samples() -> None:
    steps = Steps()
    steps.run(20, t1=1.0)
    before = steps.meter.demand
    assert before is None, "no step has been seen"
    steps.run(0.6, t1=0.5)
    demand = steps.meter.demand
    assert demand is not None
    assert demand.waited < 0.6


def test_a_training_that_stands_still_asks_for_nothing() -> None:
    steps = Steps()
    steps.run(3, t1=0.5, t2=0.5)
    for _ in range(1000):
        steps.meter.look(steps.now, steps.prepared, [1, 2], [1])
        steps.now += STEP
    assert steps.meter.demand is None


def test_what_processes_prepare_counts_while_they_have_something_to_do() -> None:
    meter, now = SupplyMeter({1: 7.0, 4: 300.0}), 0.0
    for turn in range(200):
        # Two processes prepare a sample in 10 ms each, every other 10 ms.
        meter.look(now, 2, 2 if turn % 2 == 0 else 0, 2 if turn % 2 == 1 else 0)
        now += 0.01
    measured = meter.measured(now)
    assert measured == {1: 7.0, 2: pytest.approx(200, rel=0.01), 4: 300.0}
    # What is measured here takes the place of what was remembered, as soon as it rests on enough.
    for turn in range(100):
        meter.look(now, 1, 1, 1)
        now += 0.02
        assert meter.measured(now)[1] == (7.0 if turn < 15 else pytest.approx(50, rel=0.1)), turn
    assert meter.measured(now + 700) == {4: 300.0}, "old figures count no more"


def test_newer_samples_count_more_for_a_supply() -> None:
    meter, now = SupplyMeter(), 0.0
    for seconds in (0.01, 0.04):
        for _ in range(4000):
            meter.look(now, 1, 1, 1)
            now += seconds
    assert meter.measured(now)[1] == pytest.approx(25, rel=0.02)
