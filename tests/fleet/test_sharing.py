"""Members that share preprocessing, or do not, whichever planner divides their GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.fleet.baselines import list_schedule
from malletrain.fleet.choose import choose
from malletrain.fleet.lifecycle import fleet_global
from malletrain.fleet.makespan import makespan
from malletrain.fleet.problem import EnsembleModel, FleetPlanner, FleetProblem, Pace
from malletrain.fleet.sharing import Preprocessing, Sharing
from tests.fleet.problems import problems

NO_LIMIT = float("inf")
ALIKE = FleetProblem(
    models=tuple(EnsembleModel(name, (rate,), 1) for name, rate in zip("abcd", (40.0, 40.0, 40.0, 40.0), strict=True)),
    gpus=4,
    gpus_per_node=4,
    samples_per_epoch=400.0,
    preprocess_rate=40.0,
)
"""Four members that ask for 160 samples/s together, where 40 can be prepared."""


def feed(rate: float = NO_LIMIT, pace: Pace = Pace.LOCKSTEP) -> Preprocessing:
    return Preprocessing(rate, pace, Sharing.FEED)


def test_members_of_a_feed_go_at_the_pace_of_the_slowest_but_nobody_waits_for_one_below_half() -> None:
    assert feed().paces({0: 100.0, 1: 60.0, 2: 80.0}) == {0: 60.0, 1: 60.0, 2: 60.0}
    assert feed().paces({0: 100.0, 1: 39.0, 2: 80.0}) == {0: 80.0, 1: 39.0, 2: 80.0}
    assert feed(pace=Pace.OWN).paces({0: 100.0, 1: 60.0}) == {0: 100.0, 1: 60.0}


def test_members_that_are_far_from_each_other_do_not_share() -> None:
    rates = {0: 100.0, 1: 80.0, 2: 70.0}
    assert feed().paces(rates, {0: 0.0, 1: 5000.0, 2: 6000.0}) == {0: 100.0, 1: 70.0, 2: 70.0}
    # 170 samples/s are wanted: all that share count once.
    assert feed(85.0).paces(rates, {0: 0.0, 1: 5000.0, 2: 6000.0}) == {0: 50.0, 1: 35.0, 2: 35.0}


@given(
    rates=st.dictionaries(st.integers(0, 9), st.floats(0.1, 1000.0), min_size=1),
    limit=st.floats(0.1, 2000.0),
    sharing=st.sampled_from(Sharing),
    pace=st.sampled_from(Pace),
    data=st.data(),
)
def test_nobody_is_faster_than_alone_and_no_more_is_prepared_than_can_be(
    rates: dict[int, float], limit: float, sharing: Sharing, pace: Pace, data: st.DataObject
) -> None:
    positions = {member: data.draw(st.sampled_from((0.0, 1500.0, 9000.0))) for member in rates}
    paces = Preprocessing(limit, pace, sharing).paces(rates, positions)
    assert list(paces) == list(rates)
    for member, found in paces.items():
        assert 0 < found <= rates[member]
        assert found <= limit * (1 + 1e-9)
    if sharing is Sharing.ALONE:
        assert sum(paces.values()) <= limit * (1 + 1e-9)


def test_who_preprocesses_is_the_same_for_every_planner() -> None:
    shared, alone = replace(ALIKE, shared=True), replace(ALIKE, shared=False)
    for problem, seconds in ((shared, 10.0), (alone, 40.0)):
        assert fleet_global(problem).seconds == pytest.approx(seconds)
        assert list_schedule(problem, range(4)).seconds == pytest.approx(seconds)
        assert makespan(problem).seconds == pytest.approx(seconds)
        assert list(choose(problem).seconds.values()) == pytest.approx([seconds] * 3)
    assert choose(ALIKE).seconds[FleetPlanner.LIST] == pytest.approx(40.0), "nothing is said: as published"
    assert choose(ALIKE).seconds[FleetPlanner.FLEET] == pytest.approx(10.0)


def test_members_of_a_list_that_begin_later_do_not_share_with_the_first() -> None:
    longer = replace(ALIKE.models[1], epochs=20)
    problem = replace(ALIKE, models=(ALIKE.models[0], longer, ALIKE.models[2]), gpus=2, shared=True)
    # b is 4,000 samples ahead when c begins: from then on they ask for 80 samples/s.
    slow = replace(problem, models=(replace(problem.models[0], epochs=10), longer, problem.models[2]))
    assert list_schedule(slow, range(3)).ends_s == pytest.approx((100.0, 210.0, 120.0))


@given(problem=problems())
def test_a_feed_costs_no_more_preparing_than_none(problem: FleetProblem) -> None:
    if not problem.preprocess_rate or problem.pace is Pace.OWN:
        return
    one_rate = replace(problem, models=tuple(replace(model, rates=(50.0,)) for model in problem.models), gpus=20)
    order = range(len(one_rate.models))
    together = list_schedule(replace(one_rate, shared=True), order).seconds
    assert together <= list_schedule(replace(one_rate, shared=False), order).seconds * (1 + 1e-9)
