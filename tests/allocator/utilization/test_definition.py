"""U of a minute and its bound: figures that can be worked out by hand, and what holds of any minute."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.problem.objective import rates
from malletrain.allocator.solvers.choice_table import choose
from malletrain.allocator.utilization.best_rates import BestRates
from malletrain.allocator.utilization.definition import (
    HOUR_S,
    MAX_AGE_S,
    MinuteUse,
    UseStep,
    between,
    last_hour,
    minute_use,
    pauses_of,
    trained_scale,
    utilization_of,
)
from malletrain.model.scaling import ScalingPoint
from tests.support.builders import demand

START = 1_000_000_020.0
LINEAR = demand("j1", high=4, rate=10.0)
STEEP = demand("j2", high=4, curve=(ScalingPoint(1, 30.0), ScalingPoint(2, 60.0), ScalingPoint(4, 61.0)))
JOBS = (LINEAR, STEEP)


def step(at: float, seconds: float, nodes: int, *given: float, jobs: tuple[JobDemand, ...] = JOBS) -> UseStep:
    """Rates of the jobs; what is missing is 0."""
    return UseStep(START + at, seconds, nodes, jobs, (*given, *[0.0] * (len(jobs) - len(given))))


def test_a_minute_is_compared_with_free_rescaling_and_with_nodes_that_stay() -> None:
    # Four nodes for 30 s, two for 30 s: at best 60 + 20 samples/s, then 60; on three nodes that stay 60 + 10.
    found = minute_use(START, [step(0, 30, 4, 20.0, 30.0), step(30, 30, 2, 0.0, 60.0)], BestRates())
    assert found == MinuteUse(START, 3.0, 30 * 50.0 + 30 * 60.0, 30 * 80.0 + 30 * 60.0, 60 * 70.0)
    assert found.efficiency == pytest.approx(3300 / 4200)
    assert found.bound == pytest.approx(1.0)


def test_between_whole_numbers_of_nodes_what_stays_is_linear() -> None:
    alone = (LINEAR,)
    found = minute_use(START, [step(0, 45, 2, 20.0, jobs=alone), step(45, 15, 4, 40.0, jobs=alone)], BestRates())
    assert found.nodes == 2.5
    assert found.static == pytest.approx(60 * 25.0)


def test_who_stands_still_trains_nothing_and_a_share_counts_as_a_share() -> None:
    steps = [step(0, 60, 4, 20.0, 60.0)]
    stalled = minute_use(START, steps, BestRates(), {"j1": [(START - 5.0, START + 15.0), (START + 55.0, START + 99.0)]})
    assert stalled.trained == pytest.approx(40 * 20.0 + 60 * 60.0)
    shared = minute_use(START, steps, BestRates(), {}, {"j2": 0.5})
    assert shared.trained == pytest.approx(60 * 20.0 + 30 * 60.0)
    assert minute_use(START, steps, BestRates(), trained=-3.0).trained == 0.0


def test_without_jobs_or_nodes_there_is_no_u() -> None:
    for steps in ([step(0, 60, 5, jobs=())], [step(0, 60, 0)]):
        found = minute_use(START, steps, BestRates())
        assert (found.efficiency, found.bound, found.static) == (None, None, 0.0)


def test_a_short_gap_is_taken_to_be_as_the_rest() -> None:
    whole, most = (minute_use(START, [step(0, seconds, 4, 20.0)], BestRates()) for seconds in (60.0, 59.5))
    assert (most.trained, most.free, most.static) == pytest.approx((whole.trained, whole.free, whole.static))


@st.composite
def minutes_of_jobs(draw: st.DrawFn) -> tuple[list[UseStep], dict[str, list[tuple[float, float]]], dict[str, float]]:
    """Steps in which jobs have permitted scales that fit into the idle nodes, with pauses and shares of any kind."""
    jobs = []
    for number in range(draw(st.integers(1, 4))):
        given = draw(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=4))
        least = draw(st.integers(1, 3))
        points = tuple(ScalingPoint(place + 1, sum(given[: place + 1])) for place in range(len(given)))
        jobs.append(JobDemand(f"j{number}", least, least + draw(st.integers(0, 4)), points))
    cuts = sorted(draw(st.sets(st.integers(1, 59), max_size=4)))
    steps = []
    for begin, end in pairwise([0, *cuts, 60]):
        nodes = left = draw(st.integers(0, 9))
        held = []
        for job in jobs:
            scale = trained_scale(job, draw(st.integers(0, left)))
            left -= scale
            held.append(float(rates(job, [scale])[0]))
        steps.append(UseStep(START + begin, end - begin, nodes, tuple(jobs), tuple(held)))
    names = st.sampled_from([job.id for job in jobs])
    moments = st.tuples(st.floats(-20, 80), st.floats(0, 40))
    stalls = draw(st.dictionaries(names, st.lists(moments, max_size=3), max_size=3))
    pauses = {
        job: pauses_of([(START + at, length) for at, length in found], (), 0.0, ()) for job, found in stalls.items()
    }
    return steps, pauses, draw(st.dictionaries(names, st.floats(0, 1), max_size=3))


@given(minutes_of_jobs())
def test_u_of_a_minute_is_between_nothing_and_its_bound(
    drawn: tuple[list[UseStep], dict[str, list[tuple[float, float]]], dict[str, float]],
) -> None:
    steps, pauses, shares = drawn
    found = minute_use(START, steps, BestRates(), pauses, shares)
    assert 0.0 <= found.trained <= found.free
    if found.efficiency is None:
        assert found.bound is None
        return
    assert found.bound is not None
    assert 0.0 <= found.efficiency <= found.bound
    whole = minute_use(START, steps, BestRates())
    assert found.trained <= whole.trained + 1e-6
    assert (found.free, found.static) == (whole.free, whole.static)


@given(st.lists(minutes_of_jobs(), min_size=1, max_size=4))
def test_u_of_a_longer_time_is_between_nothing_and_its_bound(drawn: list[tuple[list[UseStep], object, object]]) -> None:
    minutes = [minute_use(START + 60 * place, steps, BestRates()) for place, (steps, _, _) in enumerate(drawn)]
    found = utilization_of(minutes)
    assert found is not None
    assert found.seconds == 60.0 * len(minutes)
    if found.efficiency is not None and found.bound is not None:
        assert 0.0 <= found.efficiency <= found.bound
        known = [minute.efficiency for minute in minutes if minute.efficiency is not None]
        assert min(known) - 1e-9 <= found.efficiency
        # A minute may have had a job's least number of nodes for a moment, and fewer in the mean.
        if not any(minute.trained for minute in minutes if minute.efficiency is None):
            assert found.efficiency <= max(known) + 1e-9


def test_nothing_is_known_of_no_minutes() -> None:
    assert utilization_of([]) is None


def minutes(*places: int) -> list[MinuteUse]:
    return [MinuteUse(START + 60.0 * place, 1.0, 1.0, 1.0, 1.0) for place in places]


def test_the_last_hour_ends_with_the_newest_minute_that_tells_of_the_present() -> None:
    found = last_hour(minutes(*range(100)), START + 60.0 * 101)
    assert [found[0].start, found[-1].start, len(found)] == [START + 60.0 * 40, START + 60.0 * 99, HOUR_S / 60]
    assert last_hour(minutes(0), START + MAX_AGE_S + 1) == ()
    assert last_hour([], START) == ()
    ahead = [*minutes(0), *minutes(10**6)]  # written while the clock was wrong
    assert last_hour(ahead, START + 120) == minutes(0)


def test_minutes_of_a_period_lie_wholly_in_it() -> None:
    assert between(minutes(0, 1, 2), START + 1, START + 179) == minutes(1)


@pytest.mark.parametrize(
    ("stalls", "firsts", "starts", "expected"),
    [
        ([(100.0, 30.0), (95.0, 10.0)], [], [], [(70.0, 100.0)]),
        ([(50.0, 5.0), (100.0, 5.0)], [], [], [(45.0, 50.0), (95.0, 100.0)]),
        ([], [30.0, 112.0], [100.0], [(100.0, 110.0)]),
        ([], [30.0], [100.0], []),  # nothing is known of its first batch
        ([], [101.0], [100.0], []),  # it trained at once
    ],
)
def test_pauses_are_stalls_and_what_a_start_takes_until_its_first_batch(
    stalls: Sequence[tuple[float, float]], firsts: list[float], starts: list[float], expected: list[tuple[float, float]]
) -> None:
    assert pauses_of(stalls, firsts, 2.0, starts) == expected


def test_a_job_trains_at_the_largest_scale_that_it_may_have() -> None:
    some = demand("j", low=2, curve=LINEAR.curve, permitted_nodes=(2, 4, 8))
    assert [trained_scale(some, count) for count in range(10)] == [0, 0, 2, 2, 4, 4, 4, 4, 4, 4]
    few = demand("j", low=2, high=3, curve=LINEAR.curve)
    assert [trained_scale(few, count) for count in range(5)] == [0, 0, 2, 3, 3]


class TestBestRates:
    @given(nodes=st.integers(0, 12), least=st.integers(1, 3))
    def test_they_are_what_the_allocator_finds(self, nodes: int, least: int) -> None:
        jobs = (LINEAR, demand("j2", low=least, curve=STEEP.curve))
        best = BestRates()
        problem = AllocationProblem(tuple(f"n{number}" for number in range(nodes)), 1.0, jobs)
        assert best(jobs, nodes) == best(jobs, nodes) == pytest.approx(choose(problem).objective)

    def test_of_many_nodes_some_numbers_are_solved_and_the_others_lie_between(self) -> None:
        jobs = tuple(
            JobDemand(f"j{number}", 1, 400, tuple(ScalingPoint(n, n**0.9) for n in (1, 8, 64, 400)))
            for number in range(3)
        )
        best, exact = BestRates(), choose(AllocationProblem(tuple(map(str, range(1001))), 1.0, jobs)).objective
        assert best(jobs, 1001) == pytest.approx(exact, rel=1e-4)
        assert best(jobs, 1000) < best(jobs, 1001) < best(jobs, 1002)

    def test_jobs_of_long_ago_are_forgotten(self) -> None:
        best = BestRates()
        for number in range(200):
            assert best((demand(f"j{number}", high=4, rate=10.0),), 2) == 20.0
        assert len(best._known) < 100
        assert sum(known.table is not None for known in best._known.values()) == 1
