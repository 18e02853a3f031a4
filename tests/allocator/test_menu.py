"""A menu, made once, chooses as the problem's own arithmetic does, whatever the jobs hold."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.dynamic_program import best_counts
from malletrain.allocator.menu import Menu, Terms
from malletrain.allocator.problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric, ScalingPoint
from malletrain.allocator.worth import Choices, choices_of, job_worth, objective_of
from tests.allocator.problems import problems

CURVE = tuple(ScalingPoint(nodes, 10.0 * nodes) for nodes in range(1, 21))


def linear(least: int = 1, up: float = 0.0, down: float = 0.0) -> Choices:
    """A job that makes 10 samples/s with each node."""
    job = JobDemand("a", least, 20, CURVE, scale_up_seconds=up, scale_down_seconds=down)
    return choices_of(job, ObjectiveMetric.THROUGHPUT, 20)


@settings(deadline=None, max_examples=250)
@given(problem=problems())
def test_a_menu_chooses_what_the_dynamic_program_does(problem: AllocationProblem) -> None:
    pool = len(problem.nodes)
    choices = [choices_of(job, problem.objective_metric, pool) for job in problem.jobs]
    currents = [len(job.current_nodes) for job in problem.jobs]
    forward, cost_model = problem.forward_seconds, problem.cost_model
    choice = Menu.of(choices).choose(currents, pool, Terms(forward, cost_model))
    worths = [one.worth(current, forward, cost_model) for one, current in zip(choices, currents, strict=True)]
    assert choice.counts.tolist() == best_counts(worths, pool)
    assert choice.objective == pytest.approx(objective_of(worths, choice.counts.tolist()), rel=1e-12, abs=1e-9)
    assert choice.counts.tolist() == best_counts([job_worth(job, problem) for job in problem.jobs], pool)


@settings(deadline=None, max_examples=150)
@given(problem=problems(most_jobs=3), data=st.data())
def test_a_menu_of_a_larger_pool_serves_a_smaller_one(problem: AllocationProblem, data: st.DataObject) -> None:
    """As in a replay, where the pool changes at every event and the menu does not."""
    menu = Menu.of([choices_of(job, problem.objective_metric, len(problem.nodes) + 5) for job in problem.jobs])
    pool = data.draw(st.integers(0, len(problem.nodes)))
    currents = [data.draw(st.integers(0, 6)) for _ in problem.jobs]
    terms = Terms(problem.forward_seconds, problem.cost_model)
    worths = [
        choices_of(job, problem.objective_metric, len(problem.nodes) + 5).worth(
            current, terms.forward_seconds, terms.cost_model
        )
        for job, current in zip(problem.jobs, currents, strict=True)
    ]
    choice = menu.choose(currents, pool, terms)
    assert choice.counts.sum() <= pool
    assert choice.counts.tolist() == best_counts(worths, pool)


@settings(deadline=None, max_examples=200)
@given(problem=problems(most_jobs=3), most=st.integers(1, 5), data=st.data())
def test_no_job_changes_by_more_than_it_may_but_for_those_who_stop(
    problem: AllocationProblem, most: int, data: st.DataObject
) -> None:
    pool = len(problem.nodes)
    choices = [choices_of(job, problem.objective_metric, pool) for job in problem.jobs]
    currents = [data.draw(st.integers(0, 8)) for _ in problem.jobs]
    terms = Terms(problem.forward_seconds, problem.cost_model, most)
    choice = Menu.of(choices).choose(currents, pool, terms)
    counts = choice.counts.tolist()
    assert all(count == 0 or abs(count - held) <= most for count, held in zip(counts, currents, strict=True))
    worths = [
        one.worth(held, terms.forward_seconds, terms.cost_model) for one, held in zip(choices, currents, strict=True)
    ]
    menus = [
        [size for size in worth.sizes.tolist() if size == 0 or abs(size - held) <= most]
        for worth, held in zip(worths, currents, strict=True)
    ]
    best = max(objective_of(worths, picked) for picked in product(*menus) if sum(picked) <= pool)
    assert choice.objective == pytest.approx(best, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("held", "most", "expected"), [(0, 5, 5), (3, 5, 8), (16, 5, 12), (18, 5, 0), (9, 1, 10), (17, 4, 0), (0, 20, 12)]
)
def test_a_step_limit_by_hand(held: int, most: int, expected: int) -> None:
    menu = Menu.of([linear()])
    assert menu.choose([held], 12, Terms(60.0, CostModel.STALL, most)).counts.tolist() == [expected]


def test_the_objective_is_what_is_made_until_the_horizon_less_the_stalls() -> None:
    menu = Menu.of([linear(up=18.0, down=12.0), linear(up=18.0, down=12.0)])
    choice = menu.choose([2, 0], 5, Terms(120.0, CostModel.STALL))
    assert choice.counts.tolist() == [2, 3]
    assert choice.objective == 120 * 20 + (120 - 18) * 30
    choice = menu.choose([2, 0], 5, Terms(120.0, CostModel.PAPER))
    assert choice.counts.tolist() == [2, 3]
    assert choice.objective == 120 * 20 + 120 * 30


def test_no_jobs_are_no_choice() -> None:
    choice = Menu.of([]).choose([], 7, Terms(120.0, CostModel.STALL))
    assert choice.counts.tolist() == []
    assert choice.objective == 0.0
