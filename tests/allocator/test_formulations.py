"""All formulations and a brute force agree, and their solutions are valid placements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import (
    Allocation,
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    ObjectiveMetric,
)
from malletrain.allocator.problem.objective import permitted_sizes
from malletrain.allocator.solvers.milp import maximise
from malletrain.allocator.solvers.milp_nodes import node_model, read_node_map
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint
from tests.allocator.problems import brute_force, problems
from tests.support.builders import demand

SLOW = settings(deadline=None, max_examples=60)
LIMIT = 60.0


def check_map(problem: AllocationProblem, nodes_of: dict[str, tuple[str, ...]]) -> None:
    """No node twice, permitted scales only, no migration."""
    handed = [node for nodes in nodes_of.values() for node in nodes]
    assert len(handed) == len(set(handed))
    assert set(handed) <= set(problem.nodes)
    for job in problem.jobs:
        before, after = set(job.current_nodes), set(nodes_of[job.id])
        assert before <= after or after <= before, f"{job.id} migrates from {before} to {after}"
        assert len(after) in permitted_sizes(job, len(problem.nodes)).tolist()


def check(problem: AllocationProblem, allocation: Allocation) -> None:
    check_map(problem, {entry.job_id: entry.nodes for entry in allocation.assignments})
    assert allocation.status == "OPTIMAL"


@SLOW
@given(problem=problems(max_jobs=3, most_nodes=6))
def test_the_dynamic_programme_is_exact(problem: AllocationProblem) -> None:
    answer = solve(problem, Formulation.DP)
    check(problem, answer)
    assert answer.objective == pytest.approx(brute_force(problem), rel=1e-9, abs=1e-9)


@SLOW
@given(problem=problems())
def test_all_formulations_agree(process: SolverProcess, problem: AllocationProblem) -> None:
    exact = solve(problem, Formulation.AUTO)
    for formulation in (Formulation.COUNTS, Formulation.NODES, Formulation.MILP):
        answer = solve(problem, formulation, LIMIT, process)
        assert answer.solver == f"highs-{formulation.value}", answer.fallback_reason
        check(problem, answer)
        assert answer.objective == pytest.approx(exact.objective, rel=1e-6, abs=1e-6)


@settings(SLOW, max_examples=30)
@given(problem=problems())
def test_the_node_level_model_does_not_migrate_by_itself(problem: AllocationProblem) -> None:
    model = node_model(problem)
    proven, solution = maximise(model.model, LIMIT, lambda _: None)
    assert proven
    nodes = read_node_map(model, problem, solution)
    check_map(problem, {job.id: names for job, names in zip(problem.jobs, nodes, strict=True)})


@SLOW
@given(problem=problems(max_jobs=6, most_nodes=20))
def test_the_same_problem_gives_the_same_map(problem: AllocationProblem) -> None:
    assert solve(problem).assignments == solve(problem).assignments


@SLOW
@given(problem=problems(max_jobs=5, most_nodes=12), data=st.data())
def test_a_plan_once_applied_stays(problem: AllocationProblem, data: st.DataObject) -> None:
    """With free rescaling, solving again after applying an answer changes nothing."""
    del data
    free = AllocationProblem(
        problem.nodes,
        problem.forward_seconds,
        tuple(
            _with(job, scale_up_seconds=0.0, scale_down_seconds=0.0, stalls=(), boot_seconds=0.0)
            for job in problem.jobs
        ),
        problem.cost_model,
        problem.objective_metric,
    )
    first = solve(free)
    nodes = {entry.job_id: entry.nodes for entry in first.assignments}
    applied = AllocationProblem(
        free.nodes,
        free.forward_seconds,
        tuple(_with(job, current_nodes=nodes[job.id]) for job in free.jobs),
        free.cost_model,
        free.objective_metric,
    )
    again = solve(applied)
    assert again.assignments == first.assignments


def _with(job: JobDemand, **changes: object) -> JobDemand:
    return JobDemand(**{**job.__dict__, **changes})


NODES = tuple(f"n{index}" for index in range(8))


@pytest.mark.parametrize("formulation", list(Formulation))
def test_a_step_may_exceed_half_of_the_pool(process: SolverProcess, formulation: Formulation) -> None:
    problem = AllocationProblem(NODES, 120.0, (demand("a"),), CostModel.PAPER)
    assert len(solve(problem, formulation, LIMIT, process).assignments[0].nodes) == 8


@pytest.mark.parametrize("formulation", list(Formulation))
def test_a_minimum_above_the_pool_leaves_the_others_alone(process: SolverProcess, formulation: Formulation) -> None:
    huge = JobDemand("huge", 50, 64, (ScalingPoint(64, 1e9),))
    answer = solve(AllocationProblem(NODES, 120.0, (huge, demand("a"))), formulation, LIMIT, process)
    assert answer.solver != "present"
    assert [len(entry.nodes) for entry in answer.assignments] == [0, 8]


def test_stalls_are_charged_at_the_new_rate_and_starts_too() -> None:
    job = demand("a", "n0", "n1", scale_up_seconds=10.0)
    grown = solve(AllocationProblem(NODES, 120.0, (job,), CostModel.STALL))
    assert grown.objective == pytest.approx((120 - 10) * 800)
    started = solve(AllocationProblem(NODES, 120.0, (demand("a", scale_up_seconds=10.0),), CostModel.STALL))
    assert started.objective == pytest.approx((120 - 10) * 800)


def test_the_paper_charges_the_old_rate_and_starts_are_free() -> None:
    job = demand("a", "n0", "n1", scale_up_seconds=10.0)
    grown = solve(AllocationProblem(NODES, 120.0, (job,), CostModel.PAPER))
    assert grown.objective == pytest.approx(120 * 800 - 10 * 200)
    started = solve(AllocationProblem(NODES, 120.0, (demand("a", scale_up_seconds=10.0),), CostModel.PAPER))
    assert started.objective == pytest.approx(120 * 800)


def test_a_growth_that_does_not_pay_is_not_made() -> None:
    job = demand("a", *NODES[:7], scale_up_seconds=30.0)
    answer = solve(AllocationProblem(NODES, 120.0, (job,)))
    assert answer.assignments[0].nodes == NODES[:7]


@pytest.mark.parametrize("formulation", list(Formulation))
@pytest.mark.parametrize(("up", "boot"), [(150.0, 0.0), (100.0, 60.0), (86_400.0, 0.0)])
def test_a_job_starts_on_nodes_that_nobody_else_wants_however_long_that_takes(
    process: SolverProcess, formulation: Formulation, up: float, boot: float
) -> None:
    job = demand("a", scale_up_seconds=up, boot_seconds=boot)
    answer = solve(AllocationProblem(NODES[:4], 120.0, (job,)), formulation, LIMIT, process)
    assert answer.assignments[0].nodes == NODES[:4]
    assert answer.objective > 0
    too_few = replace(job, min_nodes=3, current_nodes=NODES[:2])
    answer = solve(AllocationProblem(NODES[:4], 120.0, (too_few,)), formulation, LIMIT, process)
    assert len(answer.assignments[0].nodes) == 4


def test_a_growth_that_pays_comes_before_a_start_that_does_not() -> None:
    grows = demand("grows", *NODES[:1], scale_up_seconds=18.0)
    starts = demand("starts", scale_up_seconds=150.0)
    answer = solve(AllocationProblem(NODES[:4], 120.0, (starts, grows)))
    assert [len(entry.nodes) for entry in answer.assignments] == [0, 4]
    slow = replace(grows, scale_up_seconds=150.0)
    answer = solve(AllocationProblem(NODES[:4], 120.0, (starts, slow)))
    assert [len(entry.nodes) for entry in answer.assignments] == [3, 1], "nor is what trains stopped for it"


def test_with_the_papers_costs_a_start_is_free_as_ever() -> None:
    job = demand("a", scale_up_seconds=150.0)
    answer = solve(AllocationProblem(NODES[:4], 120.0, (job,), CostModel.PAPER))
    assert answer.objective == pytest.approx(120.0 * 4 * 100.0)


def test_a_node_moves_only_if_the_gain_outlives_the_boot() -> None:
    # a holds both nodes and gains little from the second; b would gain twice as much, once it has booted.
    nodes = ("n1", "n2")
    a = JobDemand("a", 1, 2, (ScalingPoint(1, 100.0), ScalingPoint(2, 120.0)), current_nodes=nodes)

    def scales(boot_seconds: float) -> list[int]:
        b = JobDemand("b", 1, 1, (ScalingPoint(1, 40.0),), boot_seconds=boot_seconds)
        return [len(entry.nodes) for entry in solve(AllocationProblem(nodes, 100.0, (a, b))).assignments]

    assert scales(49.0) == [1, 1]
    assert scales(51.0) == [2, 0]


def test_scaling_efficiency_treats_jobs_alike() -> None:
    fast, slow = demand("fast", rate=7000.0), JobDemand("slow", 1, 8, (ScalingPoint(1, 10.0), ScalingPoint(8, 81.0)))
    throughput = solve(AllocationProblem(NODES, 120.0, (fast, slow)))
    efficiency = solve(
        AllocationProblem(NODES, 120.0, (fast, slow), objective_metric=ObjectiveMetric.SCALING_EFFICIENCY)
    )
    assert [len(entry.nodes) for entry in throughput.assignments] == [8, 0]
    assert [len(entry.nodes) for entry in efficiency.assignments] == [0, 8]


def test_ties_prefer_no_change_then_few_nodes_then_the_earlier_job() -> None:
    flat = (ScalingPoint(1, 100.0), ScalingPoint(8, 100.0))
    held = JobDemand("held", 1, 8, flat, current_nodes=("n3", "n5"))
    fresh = JobDemand("fresh", 1, 8, flat)
    kept = solve(AllocationProblem(NODES, 120.0, (held, fresh)))
    assert [entry.nodes for entry in kept.assignments] == [("n3", "n5"), ("n0",)]
    one = solve(AllocationProblem(("n0",), 120.0, (demand("first"), demand("second"))))
    assert [entry.nodes for entry in one.assignments] == [("n0",), ()]


def test_growths_take_the_nodes_that_stay_and_shrinks_give_up_those_that_leave() -> None:
    stays = {"n0": 5.0, "n1": 500.0, "n2": 50.0, "n3": 500.0}
    nodes = tuple(stays)
    grow = solve(AllocationProblem(nodes, 120.0, (demand("a", high=2),), expected_stay_seconds=stays))
    assert grow.assignments[0].nodes == ("n1", "n3")
    small = demand("a", "n0", "n1", "n2", high=2)
    shrink = solve(AllocationProblem(nodes, 120.0, (small,), expected_stay_seconds=stays))
    assert shrink.assignments[0].nodes == ("n1", "n2")


def test_no_jobs_and_no_nodes_are_answers_too(process: SolverProcess) -> None:
    for formulation in Formulation:
        assert solve(AllocationProblem(NODES, 120.0), formulation, LIMIT, process).assignments == ()
        empty = solve(AllocationProblem((), 120.0, (demand("a"),)), formulation, LIMIT, process)
        assert (empty.assignments[0].nodes, empty.objective) == ((), 0.0)
