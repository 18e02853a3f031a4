from __future__ import annotations

from benchmarks.journaling.plans import TimedPlan, shared_part


def plan(second: float, **scales: int) -> TimedPlan:
    return TimedPlan(second, scales, in_part=False, boots=0)


def test_the_part_of_node_seconds_that_plans_share() -> None:
    live = [plan(0, a=4), plan(10, a=2, b=2)]
    assert shared_part(live, live, 20) == 1.0
    # The first ten seconds alike; then a has 2 of 3, and b nothing of 2.
    assert shared_part(live, [plan(0, a=4), plan(10, a=3)], 20) == (40 + 20) / (40 + 30 + 20)
    assert shared_part(live, [], 20) == 0.0
    assert shared_part([], [], 20) == 1.0
