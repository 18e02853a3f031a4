"""Values of scales, computed by hand: curves, metrics and cost models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.objective import permitted_sizes, rates, scale_values
from malletrain.allocator.problem.validation import validate
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError

CURVE = (ScalingPoint(2, 100.0), ScalingPoint(4, 160.0))
NODES = tuple(f"n{index}" for index in range(8))


def demand(held: int = 0, low: int = 1, high: int = 8, permitted: tuple[int, ...] = ()) -> JobDemand:
    return JobDemand("a", low, high, CURVE, 18.0, 12.0, NODES[:held], weight=2.0, permitted_nodes=permitted)


def values(job: JobDemand, cost: CostModel, metric: ObjectiveMetric = ObjectiveMetric.THROUGHPUT) -> dict[int, float]:
    found = scale_values(job, AllocationProblem(NODES, 100.0, (job,), cost, metric))
    return dict(zip(found.sizes.tolist(), found.values.tolist(), strict=True))


def test_a_curve_is_linear_from_nothing_between_points_and_flat_beyond() -> None:
    assert rates(demand(), [0, 1, 2, 3, 4, 9]).tolist() == [0.0, 50.0, 100.0, 130.0, 160.0, 160.0]


@pytest.mark.parametrize(
    ("job", "pool", "sizes"),
    [
        (demand(), 8, [0, 1, 2, 3, 4]),
        (demand(), 3, [0, 1, 2, 3]),
        (demand(), 0, [0]),
        (demand(low=3), 8, [0, 3, 4]),
        (demand(low=3), 2, [0]),
        (demand(low=6), 8, [0]),
        (demand(permitted=(2, 4, 8)), 8, [0, 2, 4]),
        (demand(permitted=(2, 4, 8)), 3, [0, 2]),
    ],
)
def test_sizes_end_at_the_curve_the_bounds_and_the_pool(job: JobDemand, pool: int, sizes: list[int]) -> None:
    assert permitted_sizes(job, pool).tolist() == sizes


def test_stall_charges_the_new_rate_starts_included_and_nothing_for_stopping() -> None:
    assert values(demand(held=3), CostModel.STALL) == pytest.approx(
        {0: 0.0, 1: 2 * 88 * 50, 2: 2 * 88 * 100, 3: 2 * 100 * 130, 4: 2 * 82 * 160}
    )
    assert values(demand(), CostModel.STALL)[2] == pytest.approx(2 * 82 * 100)


def test_a_boot_costs_what_the_growth_would_have_gained_meanwhile() -> None:
    booting = replace(demand(held=3), boot_seconds=10.0)
    without, found = values(demand(held=3), CostModel.STALL), values(booting, CostModel.STALL)
    assert found == {**without, 4: pytest.approx(without[4] - 2 * 10 * (160 - 130))}
    start = values(replace(demand(), boot_seconds=10.0), CostModel.STALL)
    assert start[2] == pytest.approx(2 * (100 - 18 - 10) * 100)
    assert values(booting, CostModel.PAPER) == values(demand(held=3), CostModel.PAPER)


def test_paper_charges_the_present_rate_for_stopping_too_and_starts_are_free() -> None:
    assert values(demand(held=3), CostModel.PAPER) == pytest.approx(
        {
            0: -2 * 12 * 130,
            1: 2 * (100 * 50 - 12 * 130),
            2: 2 * (100 * 100 - 12 * 130),
            3: 2 * 100 * 130,
            4: 2 * (100 * 160 - 18 * 130),
        }
    )
    assert values(demand(), CostModel.PAPER)[2] == pytest.approx(2 * 100 * 100)


def test_a_job_below_its_minimum_must_change() -> None:
    assert values(demand(held=2, low=3), CostModel.PAPER) == pytest.approx(
        {0: -2 * 12 * 100, 3: 2 * (100 * 130 - 18 * 100), 4: 2 * (100 * 160 - 18 * 100)}
    )


def test_a_job_above_its_curve_is_charged_the_last_rate() -> None:
    assert values(demand(held=7), CostModel.PAPER)[4] == pytest.approx(2 * (100 * 160 - 12 * 160))


def test_efficiency_is_relative_to_one_node_even_below_the_first_point() -> None:
    assert values(demand(), CostModel.PAPER, ObjectiveMetric.SCALING_EFFICIENCY) == pytest.approx(
        {0: 0.0, 1: 200.0, 2: 400.0, 3: 520.0, 4: 640.0}
    )


def test_values_that_are_no_numbers_are_refused() -> None:
    job = JobDemand("a", 1, 2, (ScalingPoint(1, 5.0), ScalingPoint(2, 1e300)), weight=1e20)
    with pytest.raises(InvalidInputError) as caught:
        validate(AllocationProblem(NODES, 120.0, (job,)))
    assert caught.value.field == "jobs[0].curve[1].rate"


@pytest.mark.parametrize("rate", [0.0, 1e-320, 1e-300])
def test_a_job_that_does_nothing_on_one_node_is_worth_no_more_than_a_speedup_of_four_for_each(rate: float) -> None:
    """One such job must not keep the others from a plan, nor from their nodes."""
    job = JobDemand("a", 1, 2, (ScalingPoint(1, rate), ScalingPoint(2, 5.0)))
    validate(AllocationProblem(NODES, 120.0, (job,), objective_metric=ObjectiveMetric.SCALING_EFFICIENCY))
    found = values(job, CostModel.STALL, ObjectiveMetric.SCALING_EFFICIENCY)
    assert found[2] == pytest.approx(100.0 * 4 * 2)
    idle = JobDemand("a", 1, 2, (ScalingPoint(1, 0.0), ScalingPoint(2, 0.0)))
    assert set(values(idle, CostModel.STALL, ObjectiveMetric.SCALING_EFFICIENCY).values()) == {0.0}
