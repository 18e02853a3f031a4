from __future__ import annotations

import pytest

from malletrain.client.replica import CheckInterval


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_batches(interval: CheckInterval, clock: Clock, seconds: float) -> int:
    """Batches of so many seconds until the next look."""
    count = 0
    while True:
        clock.now += seconds
        count += 1
        if interval.count():
            return count


@pytest.mark.parametrize(("seconds", "batches"), [(0.01, 10), (0.03, 3), (0.1, 1), (2.0, 1), (1e-6, 1000)])
def test_a_look_every_tenth_of_a_second_or_every_batch(seconds: float, batches: int) -> None:
    clock = Clock()
    interval = CheckInterval(clock)
    assert run_batches(interval, clock, seconds) == 1
    for _ in range(4):
        interval.set_batches(interval.measure())
        run_batches(interval, clock, seconds)
    assert interval.measure() == batches


def test_slower_batches_are_noticed_at_the_next_look() -> None:
    clock = Clock()
    interval = CheckInterval(clock)
    run_batches(interval, clock, 0.01)
    for _ in range(3):
        interval.set_batches(interval.measure())
        run_batches(interval, clock, 0.01)
    interval.set_batches(interval.measure())
    run_batches(interval, clock, 0.05)
    assert interval.measure() == 2


def test_after_a_rescale_the_first_batch_is_followed_by_a_look() -> None:
    clock = Clock()
    interval = CheckInterval(clock)
    interval.set_batches(50)
    interval.restart()
    assert run_batches(interval, clock, 1.0) == 1
