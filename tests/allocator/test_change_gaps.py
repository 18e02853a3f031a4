"""How often jobs change, and the T_fwd of the policy `expected`."""

from __future__ import annotations

import pytest

from malletrain.allocator.machine.change_gaps import ChangeGaps
from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime, ObservedChanges, start_seconds
from malletrain.allocator.problem.planner import JobCurve, PlanInput, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions, split
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from tests.support.builders import cached_job, demand, plannable, plannable_nodes

CURVE = (ScalingPoint(1, 10.0), ScalingPoint(4, 30.0))
EXPECTED = ForwardTime(120.0, ForwardPolicy.EXPECTED)


def seen(*scales: tuple[float, str, int]) -> ChangeGaps:
    gaps = ChangeGaps()
    for now, job, nodes in scales:
        gaps.note_scale(job, nodes, now)
    return gaps


def test_the_time_of_all_jobs_on_nodes_counts_and_a_start_is_no_change() -> None:
    gaps = seen((0.0, "a", 0), (10.0, "a", 2), (20.0, "b", 1))
    assert gaps.observed(50.0) == ObservedChanges(40.0 + 30.0, 80.0 + 30.0, 0.0)
    gaps.note_scale("a", 0, 60.0)
    found = gaps.observed(100.0)
    assert found.changed_nodes == 2.0
    assert found.job_seconds == pytest.approx((50.0 + 40.0) * (1 - 1 / 200) + 40.0)
    assert found.node_seconds == pytest.approx((100.0 + 40.0) * (1 - 1 / 200) + 40.0)


def test_a_loss_and_the_plan_that_follows_it_are_one_change() -> None:
    assert seen((0.0, "a", 4), (100.0, "a", 3), (100.05, "a", 4)).observed(100.05).changed_nodes == 4.0
    assert seen((0.0, "a", 4), (100.0, "a", 3), (102.0, "a", 4)).observed(102.0).changed_nodes == pytest.approx(
        4 * 0.995 + 3
    )
    assert seen((0.0, "a", 4), (0.0, "b", 4), (100.0, "a", 3), (100.0, "b", 5)).observed(100.0).changed_nodes > 7.9


def test_the_newest_changes_count_most() -> None:
    gaps = ChangeGaps()
    now = 0.0
    for gap in [10.0] * 1000 + [1000.0] * 1000:
        now += gap
        gaps.note_scale("a", 1 + int(now / gap) % 2, now)
    found = gaps.observed(now)
    assert found.node_seconds / found.changed_nodes == pytest.approx(1000.0, rel=0.02)


def test_an_end_is_no_change_and_a_snapshot_forgets_jobs_that_are_gone() -> None:
    gaps = ChangeGaps()
    gaps.see_all([cached_job("a", *"xy"), cached_job("b", *"z")], 0.0, snapshot=True)
    gaps.see_all([cached_job("a", *"xy", state=JobState.COMPLETED)], 10.0, snapshot=False)
    assert gaps.observed(20.0) == ObservedChanges(30.0, 40.0, 0.0)
    gaps.see_all([cached_job("c", *"xy")], 30.0, snapshot=True)
    assert gaps.observed(40.0) == ObservedChanges(50.0, 70.0, 0.0)


def test_the_gap_of_the_job_that_holds_a_node_counts() -> None:
    """One job of nine nodes changes every 100 s, nine jobs of one node every 900 s."""
    seconds = 90_000.0
    observed = ObservedChanges(10 * seconds, 18 * seconds, 9 * seconds / 100 + 9 * seconds / 900)
    assert observed.gap(1.0) == pytest.approx(1 / (0.5 / 100 + 0.5 / 900), rel=0.01)


def test_a_part_of_the_gap_is_looked_ahead_and_before_it_is_known_as_far_as_by_default() -> None:
    assert EXPECTED.of([]) == 120.0
    assert EXPECTED.of([], ObservedChanges(1000.0, 10_000.0)) == pytest.approx(120.0 + 0.35 * 100.0)
    gap = (200_000.0 + 20.0 * 120.0 / 0.35) / (500.0 + 20.0)
    assert EXPECTED.of([], ObservedChanges(100_000.0, 200_000.0, 500.0)) == pytest.approx(0.35 * gap)
    assert EXPECTED.of([], ObservedChanges(1.0, 1.0, 1e6)) == 10.0
    assert EXPECTED.of([], ObservedChanges(1e9, 1e9, 0.0)) == 3600.0


def test_every_job_can_start_even_while_its_workers_boot() -> None:
    starts = [start_seconds(5.0), start_seconds(72.0), start_seconds(30.0, 10.0)]
    assert starts[1:] == pytest.approx([120.0, 60.0])
    assert ForwardTime(10.0, ForwardPolicy.EXPECTED).of([], starts=starts) == pytest.approx(120.0)
    job = plannable("a")
    slow = JobCurve(CURVE, 400.0, 10.0)
    options = PlannerOptions(EXPECTED, CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    asked = PlanInput(plannable_nodes("n1"), (job,), curves={"a": slow}, growth_seconds={"a": 5000.0})
    demand = plan_problem(asked, options).whole
    assert demand.forward_seconds == pytest.approx(400.0 * 10 / 3)
    assert demand.forward_seconds > demand.jobs[0].boot_seconds + demand.jobs[0].scale_up_seconds


def test_each_pool_looks_ahead_as_far_as_its_own_jobs_need() -> None:
    jobs = tuple(
        demand(name, f"{name}1", high=4, curve=CURVE, scale_up_seconds=stall, scale_down_seconds=1.0)
        for name, stall in (("a", 5.0), ("b", 90.0))
    )
    whole = AllocationProblem(("a1", "b1"), 225.0, jobs)
    parts = split(whole, {"a1": "x", "b1": "y"}, EXPECTED, ObservedChanges(20_000.0, 20_000.0, 500.0))
    gap = (20_000.0 + 10 * 120.0 / 0.35) / 510.0
    assert [part.forward_seconds for part in parts] == [pytest.approx(0.35 * gap), pytest.approx(150.0)]
