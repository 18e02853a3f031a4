"""Rescale costs: which figure is used, and the stalls of single pairs of scales."""

from __future__ import annotations

import pytest

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import RescaleStall, ScalingPoint
from malletrain.profiler.machine.curve_estimator import MIN_STALL_SECONDS, RescaleCost, rescale_cost, stalls_by_pair
from malletrain.profiler.machine.points import CurveSource


def test_costs_measured_then_declared_then_assumed() -> None:
    assert rescale_cost(2.0, 5.0, 10.0) == RescaleCost(2.0, CurveSource.MEASURED)
    assert rescale_cost(None, 5.0, 10.0) == RescaleCost(5.0, CurveSource.DECLARED)
    assert rescale_cost(None, None, 10.0) == RescaleCost(10.0, CurveSource.PRIOR)
    assert rescale_cost(None, 0.0, 10.0) == RescaleCost(0.0, CurveSource.DECLARED)


def test_before_the_first_rescale_none_is_expected_to_be_shorter_than_saving_and_reading_the_state() -> None:
    checkpoint = RescaleCost(90.0, CurveSource.CHECKPOINT)
    assert (
        rescale_cost(None, None, 10.0, checkpoint=90.0) == rescale_cost(None, 5.0, 10.0, checkpoint=90.0) == checkpoint
    )
    assert rescale_cost(None, 100.0, 10.0, checkpoint=90.0) == RescaleCost(100.0, CurveSource.DECLARED)
    assert rescale_cost(2.0, None, 10.0, checkpoint=90.0) == RescaleCost(2.0, CurveSource.MEASURED)
    assert rescale_cost(None, None, 10.0, 3.0, checkpoint=90.0) == RescaleCost(3.0, CurveSource.FAMILY)


def test_a_job_whose_save_takes_90_s_does_not_grow_for_60() -> None:
    def nodes_after(seconds: float) -> int:
        growth = rescale_cost(None, None, 10.0, checkpoint=seconds).seconds
        points = tuple(ScalingPoint(nodes, 10.0 * nodes) for nodes in range(1, 5))
        job = JobDemand("a", 1, 4, points, growth, growth, current_nodes=("n0",))
        solved = solve(AllocationProblem(tuple(f"n{number}" for number in range(4)), 60.0, (job,), CostModel.STALL))
        return len(solved.assignments[0].nodes)

    assert (nodes_after(0.0), nodes_after(90.0)) == (4, 1)


def test_no_measured_rescale_is_free() -> None:
    """Else the last digits of rates decide between plans, and jobs lose their nodes for nothing."""
    least = RescaleCost(MIN_STALL_SECONDS, CurveSource.MEASURED)
    assert rescale_cost(0.0, 5.0, 10.0) == rescale_cost(1e-7, 5.0, 10.0) == least
    assert rescale_cost(None, 5.0, 10.0, 1e-7) == RescaleCost(MIN_STALL_SECONDS, CurveSource.FAMILY)
    assert stalls_by_pair([RescaleStall(4, 8, 1e-7)] * 98, least, least, 2.0) == (
        RescaleStall(4, 8, MIN_STALL_SECONDS),
    )


class TestStallsByPair:
    UP, DOWN = RescaleCost(2.0, CurveSource.MEASURED), RescaleCost(1.0, CurveSource.PRIOR)

    def test_one_measurement_moves_the_general_figure_a_little(self) -> None:
        found = stalls_by_pair([RescaleStall(4, 8, 5.0)], self.UP, self.DOWN, weight=2.0)
        assert found == (RescaleStall(4, 8, 3.0),)

    def test_many_outweigh_it_and_each_direction_has_its_own(self) -> None:
        measured = [*[RescaleStall(8, 4, 3.0)] * 98, RescaleStall(4, 8, 2.0)]
        up, down = stalls_by_pair(measured, self.UP, self.DOWN, weight=2.0)
        assert (up.from_nodes, up.to_nodes, up.seconds) == (4, 8, 2.0)
        assert down.seconds == pytest.approx(2.96)

    def test_nothing_measured_nothing_said(self) -> None:
        assert stalls_by_pair([], self.UP, self.DOWN, weight=2.0) == ()


def test_what_a_rescale_costs_at_least_outweighs_the_last_digits_of_measured_rates() -> None:
    """Jobs that gain nothing from each other's nodes keep their own, though some are measured a little faster."""

    def kept(seconds: float) -> list[bool]:
        jobs = []
        for number in range(6):
            rate = 320.0 * (1 + number * 1e-7)
            points = tuple(ScalingPoint(nodes, rate * nodes) for nodes in range(1, 9))
            held = (f"n{2 * number}", f"n{2 * number + 1}")
            jobs.append(JobDemand(f"j{number}", 1, 8, points, seconds, seconds, current_nodes=held))
        names = tuple(f"n{number}" for number in range(12))
        solved = solve(AllocationProblem(names, 120.0, tuple(jobs), CostModel.STALL))
        return [part.nodes == job.current_nodes for part, job in zip(solved.assignments, jobs, strict=True)]

    assert all(kept(rescale_cost(1e-7, None, 0.0).seconds))
    assert not all(kept(1e-9)), "without a least cost they do not"
