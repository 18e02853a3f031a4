"""Scenarios, and options that are refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.replay.evaluation import Scenario, evaluate
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import ReplayOptions, ReplayPolicy
from tests.simulator.replay.builders import STAYS, idle, trainer


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"forward_s": 0.0}, "--forward"),
        ({"forward_s": -5.0}, "--forward"),
        ({"forward_s": float("inf")}, "--forward"),
        ({"forward_s": float("nan")}, "--forward"),
        ({"duration_s": 0.0}, "--hours"),
        ({"duration_s": float("inf")}, "--hours"),
        ({"commit_s": -1.0}, "--commit-seconds"),
        ({"commit_s": float("nan")}, "--commit-seconds"),
        ({"max_parallel": 0}, "--max-parallel"),
        ({"fixed_nodes": 0}, "--fixed-nodes"),
    ],
)
def test_options_that_can_not_be_used_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ReplayOptions(**{"duration_s": 100.0, **options})
    assert caught.value.field == field


def test_what_is_charged_is_what_is_believed_unless_told_otherwise() -> None:
    assert ReplayOptions(duration_s=1.0, cost_model=CostModel.PAPER).charged is CostModel.PAPER
    assert ReplayOptions(duration_s=1.0, charge=CostModel.PAPER).charged is CostModel.PAPER


def test_events_are_the_changes_of_one_instant_and_what_was_idle_before_joins_at_the_start() -> None:
    trace = idle({"b": [(-9, 5), (8, 12)], "a": [(5, 8)], "c": [(-4, 0)], "d": [(0, 30), (100, 120)]})
    assert Scenario.of(trace, 25.0).events == (
        NodeEvent(0.0, (("b", -9.0), ("d", 0.0)), ()),
        NodeEvent(5.0, (("a", 5.0),), ("b",)),
        NodeEvent(8.0, (("b", 8.0),), ("a",)),
        NodeEvent(12.0, (), ("b",)),
    )


def test_what_ends_with_the_replay_does_not_leave_in_it() -> None:
    scenario = Scenario.of(idle({"a": [(10, 50)], "b": [(50, 60)]}), 50.0)
    assert scenario.events == (NodeEvent(10.0, (("a", 10.0),), ()),)


def test_the_resource_integral_is_node_hours_and_equivalent_nodes_its_mean() -> None:
    scenario = Scenario.of(idle({"a": [(0, 1800)], "b": [(900, 5400)], "c": [(-500, STAYS)]}), 3600.0)
    assert scenario.node_hours == (1800 + 2700 + 3600) / 3600
    assert scenario.equivalent_nodes == 2.25


def test_a_time_without_idle_nodes_is_no_scenario() -> None:
    trace = idle({"a": [(500, 600)]}, 1000.0)
    with pytest.raises(InvalidInputError, match="at least one node is idle") as caught:
        Scenario.of(trace, 400.0)
    assert caught.value.field == "--hours"


def test_an_evaluation_measures_against_static_nodes_and_the_bound() -> None:
    scenario = Scenario.of(idle({"a": [(0, STAYS)], "b": [(0, 60)]}), 120.0)
    jobs = [trainer(rates=[10.0, 20.0], up_s=3.0, down_s=2.0)]
    ticks = iter([5.0, 7.5])
    told: list[float] = []
    options = ReplayOptions(duration_s=120.0, commit_s=0.0, policy=ReplayPolicy.EQUAL)
    evaluation = evaluate(scenario, jobs, options, progress=told.append, seconds=lambda: next(ticks))
    assert evaluation.wall_seconds == 2.5
    assert told == [0.0, 60.0]
    metrics = evaluation.metrics
    assert metrics.equivalent_nodes == 1.5
    assert metrics.static_outcome == 120 * 15
    assert metrics.utilization_efficiency == pytest.approx((57 * 20 + 58 * 10) / 1800)
    assert metrics.zero_cost_bound == 1.0
    assert metrics.occupied_fraction == 1.0
    assert metrics.preemption_within_forward == 0.5

    unbound = evaluate(scenario, jobs, options, bound=False)
    assert unbound.free is None
    assert unbound.metrics.zero_cost_bound is None
    assert unbound.metrics.utilization_efficiency == metrics.utilization_efficiency


def test_a_scenario_can_be_handed_to_other_processes() -> None:
    scenario = Scenario.of(idle({"a": [(0, 1800)]}), 3600.0)
    assert pickle.loads(pickle.dumps(scenario)) == scenario
