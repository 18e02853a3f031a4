"""Value curves in plans: every formulation against a brute force that knows the forms by their definitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    ObjectiveMetric,
)
from malletrain.allocator.problem.objective import permitted_sizes, rates, worths
from malletrain.allocator.problem.validation import fault_of, validate
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import problem_from_proto, problem_to_proto
from malletrain.model.goodput import StatisticalEfficiency
from malletrain.model.job_value import LINEAR, ValueCurve, ValuePoint
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError
from tests.allocator.problems import problems
from tests.support.builders import demand

SLOW = settings(deadline=None, max_examples=60)
NODES = tuple(f"n{index}" for index in range(8))


@st.composite
def value_curves(draw: st.DrawFn) -> ValueCurve:
    """All forms; points of any shape, falling too."""
    speedups = draw(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 8.0]), min_size=1, unique=True).map(sorted))
    points = tuple(ValuePoint(speedup, draw(st.sampled_from([0.0, 0.7, 1.0, 2.5, 9.0]))) for speedup in speedups)
    needed = ValueCurve(needed_rate=draw(st.sampled_from([0.5, 120.0, 1e4])), urgency=draw(st.sampled_from([1.0, 4.0])))
    noise_scale, initial = draw(st.sampled_from([0.5, 64.0, 1e4])), draw(st.sampled_from([8.0, 20.0]))
    goodput = ValueCurve(efficiency=StatisticalEfficiency(noise_scale, 8.0, initial))
    return draw(st.sampled_from([LINEAR, ValueCurve(exponent=0.5), ValueCurve(points=points), needed, goodput]))


@st.composite
def valued_problems(draw: st.DrawFn, max_jobs: int = 3, most_nodes: int = 6) -> AllocationProblem:
    problem = draw(problems(max_jobs, most_nodes))
    return replace(problem, jobs=tuple(replace(job, value=draw(value_curves())) for job in problem.jobs))


def worth(curve: ValueCurve, rate: float, alone: float, nodes: int) -> float:
    """The definition of each form, for one rate."""
    if curve.efficiency is not None:
        terms = curve.efficiency
        batch = max(terms.initial_batch, nodes * terms.batch_per_node)
        return rate * (terms.noise_scale + terms.initial_batch) / (terms.noise_scale + batch)
    if curve.needed_rate:
        return curve.urgency * min(rate, curve.needed_rate) + max(0.0, rate - curve.needed_rate)
    if not alone:
        return rate
    speedup = rate / alone
    if curve.points:
        before = ValuePoint(0.0, 0.0)
        for point in curve.points:
            if speedup <= point.speedup:
                share = (speedup - before.speedup) / (point.speedup - before.speedup)
                return alone * (before.value + share * (point.value - before.value))
            before = point
        return alone * before.value
    return float(alone * speedup**curve.exponent)


def value_of(problem: AllocationProblem, job: JobDemand, nodes: int) -> float:
    """Eq. 16 for one job at one scale, with what rates count for in place of rates."""
    alone = float(rates(job, [1])[0])
    scales, last = (nodes, len(job.current_nodes)), job.curve[-1].nodes
    counts = [worth(job.value, float(rates(job, [scale])[0]), alone, min(scale, last)) for scale in scales]
    steepest = max(point.rate / point.nodes for point in job.curve if point.nodes > 0)
    unit = max(alone, steepest / 4) if problem.objective_metric is ObjectiveMetric.SCALING_EFFICIENCY else 1
    new, old = (count / unit for count in counts)
    held, forward = len(job.current_nodes), problem.forward_seconds
    stall = job.scale_up_seconds if nodes > held else job.scale_down_seconds if nodes < held else 0.0
    if problem.cost_model is CostModel.PAPER:
        return job.weight * (forward * new - stall * old)
    measured = {(one.from_nodes, one.to_nodes): one.seconds for one in job.stalls}
    stall = measured.get((held, nodes), stall)
    trains = held > 0 and held in permitted_sizes(job, len(problem.nodes)).tolist()
    if nodes > held and not trains:
        return job.weight * new * (forward - min(stall + job.boot_seconds, 0.99 * forward))
    boot = job.boot_seconds * (new - old) if nodes > held else 0.0
    return job.weight * (forward * new - stall * new - boot)


def best(problem: AllocationProblem) -> float:
    sizes = [permitted_sizes(job, len(problem.nodes)).tolist() for job in problem.jobs]
    return max(
        (
            sum(value_of(problem, job, nodes) for job, nodes in zip(problem.jobs, choice, strict=True))
            for choice in product(*sizes)
            if sum(choice) <= len(problem.nodes)
        ),
        default=0.0,
    )


@SLOW
@given(problem=valued_problems())
def test_the_dynamic_program_is_exact(problem: AllocationProblem) -> None:
    validate(problem)
    assert solve(problem, Formulation.DP).objective == pytest.approx(best(problem), rel=1e-9, abs=1e-9)


@settings(SLOW, max_examples=40)
@given(problem=valued_problems())
def test_all_formulations_agree(process: SolverProcess, problem: AllocationProblem) -> None:
    exact = solve(problem, Formulation.AUTO)
    for formulation in (Formulation.COUNTS, Formulation.NODES, Formulation.MILP):
        answer = solve(problem, formulation, 60.0, process)
        assert answer.solver == f"highs-{formulation.value}", answer.fallback_reason
        assert answer.objective == pytest.approx(exact.objective, rel=1e-6, abs=1e-6)


@SLOW
@given(problem=valued_problems())
def test_messages_keep_values(problem: AllocationProblem) -> None:
    again = problem_from_proto(problem_to_proto(problem))
    assert [job.value.linear for job in again.jobs] == [job.value.linear for job in problem.jobs]
    assert all(
        one.value == two.value for one, two in zip(again.jobs, problem.jobs, strict=True) if not one.value.linear
    )


def counts(*jobs: JobDemand) -> list[int]:
    return [len(entry.nodes) for entry in solve(AllocationProblem(NODES, 120.0, jobs)).assignments]


def test_of_equal_jobs_with_diminishing_value_each_gets_as_much() -> None:
    root = ValueCurve(exponent=0.5)
    assert counts(demand("a"), demand("b")) == [8, 0], "ties go to the first"
    assert counts(demand("a", value=root), demand("b", value=root)) == [4, 4]


def test_a_deadline_gets_what_it_needs_and_no_more() -> None:
    urgent = ValueCurve(needed_rate=300.0, urgency=4.0)
    fast = demand("a", weight=2.0)
    assert counts(fast, demand("b")) == [8, 0]
    assert counts(fast, demand("b", value=urgent)) == [5, 3]


def test_a_job_that_counts_up_to_a_speedup_leaves_the_rest() -> None:
    upto = ValueCurve(points=(ValuePoint(3.0, 3.0),))
    assert counts(demand("a", value=upto, weight=9.0), demand("b")) == [3, 5]


def test_a_job_whose_larger_batches_teach_little_leaves_nodes_to_the_other() -> None:
    """Equal curves; 8 nodes are worth 72 / (64 + 64) of a straight line to the first job, all to the other."""
    small = ValueCurve(efficiency=StatisticalEfficiency(noise_scale=64.0, batch_per_node=8.0, initial_batch=8.0))
    large = ValueCurve(efficiency=StatisticalEfficiency(noise_scale=64e4, batch_per_node=8.0, initial_batch=8.0))
    assert worths(demand("a", value=small), [8]).tolist() == [800 * 72 / 128]
    assert counts(demand("a"), demand("b")) == [8, 0]
    assert counts(demand("a", value=small), demand("b", value=large)) == [1, 7], "on one node both are alike"
    assert counts(demand("a", value=small), demand("b", value=small)) == [4, 4]


def test_curves_of_problems_are_checked() -> None:
    problem = AllocationProblem(NODES, 120.0, (demand("a", value=ValueCurve(exponent=2.0)),))
    with pytest.raises(InvalidInputError, match=r"jobs\[0\]\.value\.exponent"):
        validate(problem)


@pytest.mark.parametrize("metric", ObjectiveMetric)
@pytest.mark.parametrize("formulation", [Formulation.AUTO, Formulation.DP, Formulation.COUNTS, Formulation.MILP])
def test_no_curve_is_worth_more_than_numbers_can_say(formulation: Formulation, metric: ObjectiveMetric) -> None:
    """A rate of next to nothing on one node made speedups infinite, and solvers fail with those."""
    curve = (ScalingPoint(1, 1e-310), ScalingPoint(4, 1e15))
    for value in (ValueCurve(exponent=0.5), ValueCurve(points=(ValuePoint(1.0, 1.0), ValuePoint(2.0, 3.0)))):
        job = replace(demand("a", value=value), curve=curve)
        assert np.isfinite(worths(job, range(5))).all()
        problem = AllocationProblem(NODES, 120.0, (job, demand("b"), demand("c")), objective_metric=metric)
        assert fault_of(job) == ""
        assert len(solve(problem, formulation).assignments) == 3


def test_wrong_figures_are_found_by_either_metric() -> None:
    job = demand("a", curve=(ScalingPoint(1, 1e-310),), weight=1e15)
    problem = AllocationProblem(NODES, 120.0, (job,), objective_metric=ObjectiveMetric.SCALING_EFFICIENCY)
    with pytest.raises(InvalidInputError, match="rate"):
        validate(problem)
    assert "rate" in fault_of(job)
