"""A choice table, built once, chooses what the objective says is best, whatever nodes the jobs hold."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, ObjectiveMetric
from malletrain.allocator.problem.objective import ScaleRates, objective_of, scale_rates, scale_values
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters, best_counts
from malletrain.model.scaling import ScalingPoint
from tests.allocator.problems import problems
from tests.support.builders import demand

CURVE = tuple(ScalingPoint(nodes, 10.0 * nodes) for nodes in range(1, 21))


def linear(least: int = 1, up: float = 0.0, down: float = 0.0) -> ScaleRates:
    """A job that makes 10 samples/s with each node."""
    job = demand("a", low=least, high=20, curve=CURVE, scale_up_seconds=up, scale_down_seconds=down)
    return scale_rates(job, ObjectiveMetric.THROUGHPUT, 20)


@settings(deadline=None, max_examples=250)
@given(problem=problems())
def test_a_choice_table_chooses_what_the_dynamic_program_does(problem: AllocationProblem) -> None:
    pool = len(problem.nodes)
    choices = [scale_rates(job, problem.objective_metric, pool) for job in problem.jobs]
    currents = [len(job.current_nodes) for job in problem.jobs]
    forward, cost_model = problem.forward_seconds, problem.cost_model
    choice = ChoiceTable.of(choices).choose(currents, pool, ObjectiveParameters(forward, cost_model))
    per_job = [one.values_from(current, forward, cost_model) for one, current in zip(choices, currents, strict=True)]
    assert choice.counts.tolist() == best_counts(per_job, pool)
    assert choice.objective == pytest.approx(objective_of(per_job, choice.counts.tolist()), rel=1e-12, abs=1e-9)
    assert choice.counts.tolist() == best_counts([scale_values(job, problem) for job in problem.jobs], pool)


@settings(deadline=None, max_examples=150)
@given(problem=problems(max_jobs=3), data=st.data())
def test_a_choice_table_of_a_larger_pool_serves_a_smaller_one(problem: AllocationProblem, data: st.DataObject) -> None:
    """As in a replay, where the pool changes at every event and the table does not."""
    table = ChoiceTable.of([scale_rates(job, problem.objective_metric, len(problem.nodes) + 5) for job in problem.jobs])
    pool = data.draw(st.integers(0, len(problem.nodes)))
    currents = [data.draw(st.integers(0, 6)) for _ in problem.jobs]
    parameters = ObjectiveParameters(problem.forward_seconds, problem.cost_model)
    per_job = [
        scale_rates(job, problem.objective_metric, len(problem.nodes) + 5).values_from(
            current, parameters.forward_seconds, parameters.cost_model
        )
        for job, current in zip(problem.jobs, currents, strict=True)
    ]
    choice = table.choose(currents, pool, parameters)
    assert choice.counts.sum() <= pool
    assert choice.counts.tolist() == best_counts(per_job, pool)


@settings(deadline=None, max_examples=200)
@given(problem=problems(max_jobs=3), most=st.integers(1, 5), data=st.data())
def test_no_job_changes_by_more_than_it_may_but_for_those_who_stop(
    problem: AllocationProblem, most: int, data: st.DataObject
) -> None:
    pool = len(problem.nodes)
    choices = [scale_rates(job, problem.objective_metric, pool) for job in problem.jobs]
    currents = [data.draw(st.integers(0, 8)) for _ in problem.jobs]
    parameters = ObjectiveParameters(problem.forward_seconds, problem.cost_model, most)
    choice = ChoiceTable.of(choices).choose(currents, pool, parameters)
    counts = choice.counts.tolist()
    assert all(count == 0 or abs(count - held) <= most for count, held in zip(counts, currents, strict=True))
    per_job = [
        one.values_from(held, parameters.forward_seconds, parameters.cost_model)
        for one, held in zip(choices, currents, strict=True)
    ]
    permitted = [
        [size for size in scales.sizes.tolist() if size == 0 or abs(size - held) <= most]
        for scales, held in zip(per_job, currents, strict=True)
    ]
    best = max(objective_of(per_job, picked) for picked in product(*permitted) if sum(picked) <= pool)
    assert choice.objective == pytest.approx(best, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("held", "most", "expected"), [(0, 5, 5), (3, 5, 8), (16, 5, 12), (18, 5, 0), (9, 1, 10), (17, 4, 0), (0, 20, 12)]
)
def test_a_step_limit_by_hand(held: int, most: int, expected: int) -> None:
    table = ChoiceTable.of([linear()])
    assert table.choose([held], 12, ObjectiveParameters(60.0, CostModel.STALL, most)).counts.tolist() == [expected]


def test_the_objective_is_what_is_made_until_the_horizon_less_the_stalls() -> None:
    table = ChoiceTable.of([linear(up=18.0, down=12.0), linear(up=18.0, down=12.0)])
    choice = table.choose([2, 0], 5, ObjectiveParameters(120.0, CostModel.STALL))
    assert choice.counts.tolist() == [2, 3]
    assert choice.objective == 120 * 20 + (120 - 18) * 30
    choice = table.choose([2, 0], 5, ObjectiveParameters(120.0, CostModel.PAPER))
    assert choice.counts.tolist() == [2, 3]
    assert choice.objective == 120 * 20 + 120 * 30


def test_no_jobs_are_no_choice() -> None:
    choice = ChoiceTable.of([]).choose([], 7, ObjectiveParameters(120.0, CostModel.STALL))
    assert choice.counts.tolist() == []
    assert choice.objective == 0.0
