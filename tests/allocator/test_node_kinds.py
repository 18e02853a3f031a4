"""Plans in which not all nodes suit all jobs: they equal a brute force, and every job gets suitable nodes only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.explanation.forced_by_kind import ByKinds
from malletrain.allocator.explanation.worth import PartExplainer, PlannedPart, Reason
from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    NeedCount,
    NodeKind,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.objective import objective_of, permitted_sizes, scale_values
from malletrain.allocator.problem.planner import (
    JobCurve,
    PlanInput,
    PlannableJob,
    PlannableNode,
    PlanProblem,
    plan_problem,
)
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.solvers.choice_table import groups_of, present_counts
from malletrain.allocator.solvers.kind_flow import can_be_placed
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import (
    allocation_to_proto,
    job_from_proto,
    node_from_proto,
    problem_from_proto,
    problem_to_proto,
)
from malletrain.model.node_needs import NodeNeeds
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from malletrain.v1 import allocator_pb2, resources_pb2
from tests.allocator.grouped_problems import brute_force, has_nodes
from tests.allocator.problems import problems
from tests.support.builders import demand, job_message, plannable
from tests.support.solvers import Silent

SLOW = settings(deadline=None, max_examples=150)
LIMIT = 60.0


@st.composite
def kinds_of_nodes(draw: st.DrawFn) -> AllocationProblem:
    """Problems with up to three kinds of nodes, which suit any of the jobs. Jobs may hold others, too."""
    problem = draw(problems(max_jobs=3, most_nodes=5))
    kinds = draw(st.integers(1, 3))
    places = draw(st.lists(st.integers(0, kinds), min_size=len(problem.nodes), max_size=len(problem.nodes)))
    members = [
        NodeKind(tuple(node for node, place in zip(problem.nodes, places, strict=True) if place == kind))
        for kind in range(kinds)
    ]
    jobs = [
        replace(job, min_nodes=1, unsuitable_kinds=tuple(sorted(draw(st.sets(st.integers(0, kinds - 1))))))
        for job in problem.jobs
    ]
    return replace(problem, jobs=tuple(jobs), kinds=tuple(members))


def suited(problem: AllocationProblem, job: JobDemand) -> set[str]:
    barred = {node for kind in job.unsuitable_kinds for node in problem.kinds[kind].nodes}
    return set(problem.nodes) - barred


def check(problem: AllocationProblem, nodes_of: dict[str, tuple[str, ...]]) -> None:
    handed = [node for nodes in nodes_of.values() for node in nodes]
    assert len(handed) == len(set(handed))
    for job in problem.jobs:
        before, after = set(job.current_nodes), set(nodes_of[job.id])
        assert before <= after or after <= before, f"{job.id} migrates from {before} to {after}"
        assert after - before <= suited(problem, job), f"{job.id} gets nodes that do not suit it"


@SLOW
@given(problem=kinds_of_nodes(), formulation=st.sampled_from(list(Formulation)))
def test_it_is_exact(process: SolverProcess, problem: AllocationProblem, formulation: Formulation) -> None:
    answer = solve(problem, formulation, LIMIT, process)
    assert answer.status == "OPTIMAL", answer.fallback_reason
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    assert answer.objective == pytest.approx(brute_force(problem), rel=1e-6, abs=1e-6)


@SLOW
@given(problem=kinds_of_nodes(), data=st.data())
def test_there_are_nodes_exactly_where_trying_finds_them(problem: AllocationProblem, data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, len(problem.nodes))) for _ in problem.jobs]
    assert can_be_placed(problem, counts) == has_nodes(problem, counts)


@SLOW
@given(problem=kinds_of_nodes())
def test_without_an_answer_in_time_there_is_a_plan_all_the_same(problem: AllocationProblem) -> None:
    answer = solve(problem, process=Silent())
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    assert answer.status == {"greedy": "FEASIBLE", "present": "UNCHANGED"}.get(answer.solver, "OPTIMAL")
    per_job = [scale_values(demand, problem) for demand in problem.jobs]
    present = present_counts(per_job, problem.capacity, groups_of(problem))
    if can_be_placed(problem, present):
        assert answer.objective >= objective_of(per_job, present) - 1e-9
    for entry, job in zip(answer.assignments, problem.jobs, strict=True):
        assert len(entry.nodes) in permitted_sizes(job, len(problem.nodes)).tolist()


def test_each_job_in_turn_gets_what_there_is() -> None:
    problem = AllocationProblem(
        nodes=("c1", "c2", "g1", "g2", "g3"),
        forward_seconds=120.0,
        jobs=(
            demand("a", "g1", high=3, unsuitable_kinds=(0,)),
            demand("b", high=3, unsuitable_kinds=(0,)),
            demand("c", high=1),
        ),
        kinds=(NodeKind(("c1", "c2")),),
    )
    answer = solve(problem, process=Silent())
    assert answer.solver == "greedy"
    assert [len(entry.nodes) for entry in answer.assignments] == [3, 0, 0]


@SLOW
@given(problem=problems())
def test_kinds_that_suit_everybody_change_nothing(problem: AllocationProblem) -> None:
    half = problem.nodes[: len(problem.nodes) // 2]
    with_kinds = solve(replace(problem, kinds=(NodeKind(half),)))
    alone = solve(problem)
    assert with_kinds.assignments == alone.assignments
    assert with_kinds.objective == alone.objective


def test_a_job_that_suits_all_nodes_leaves_those_that_another_needs() -> None:
    # By expected stay alone, `a` would take g1, and `b` would wait.
    problem = AllocationProblem(
        nodes=("c1", "c2", "g1"),
        forward_seconds=120.0,
        jobs=(demand("a", high=2), demand("b", high=1, unsuitable_kinds=(0,))),
        kinds=(NodeKind(("c1", "c2")),),
        expected_stay_seconds={"g1": 900.0, "c2": 100.0},
    )
    answer = solve(problem)
    assert {entry.job_id: entry.nodes for entry in answer.assignments} == {"a": ("c1", "c2"), "b": ("g1",)}


def test_of_suitable_nodes_the_ones_that_stay_longest_are_taken() -> None:
    problem = AllocationProblem(
        nodes=("c1", "g1", "g2", "g3"),
        forward_seconds=120.0,
        jobs=(demand("b", high=2, unsuitable_kinds=(0,)),),
        kinds=(NodeKind(("c1",)),),
        expected_stay_seconds={"c1": 900.0, "g2": 800.0, "g3": 700.0, "g1": 10.0},
    )
    assert solve(problem).assignments[0].nodes == ("g2", "g3")


def test_a_job_keeps_nodes_that_no_longer_suit_it() -> None:
    problem = AllocationProblem(
        nodes=("c1", "g1"),
        forward_seconds=120.0,
        jobs=(demand("b", "c1", high=2, unsuitable_kinds=(0,)),),
        kinds=(NodeKind(("c1",)),),
    )
    assert solve(problem).assignments[0].nodes == ("c1", "g1")


def best(problem: AllocationProblem, condition: Callable[[list[int]], bool] = lambda _: True) -> float:
    """As `brute_force`, of the plans that meet a condition; minus infinity where there is none."""
    per_job = [scale_values(job, problem) for job in problem.jobs]
    found = float("-inf")
    for choice in product(*(range(len(scales.sizes)) for scales in per_job)):
        counts = [int(scales.sizes[place]) for scales, place in zip(per_job, choice, strict=True)]
        value = sum(float(scales.values[place]) for scales, place in zip(per_job, choice, strict=True))
        if value > found and condition(counts) and has_nodes(problem, counts):
            found = value
    return found


@settings(SLOW, max_examples=60)
@given(problem=kinds_of_nodes())
def test_an_explanation_says_what_other_plans_would_have_lost(
    process: SolverProcess, problem: AllocationProblem
) -> None:
    answer = solve(problem, process=process)
    part = PlannedPart("", apply_pins(problem, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    explainer = PartExplainer(part, ByKinds(process))
    largest = max(1.0, sum(float(abs(scale_values(job, problem).values).max()) for job in problem.jobs))
    close = 1e-6 * largest
    account = explainer.account()
    more = best(replace(problem, nodes=(*problem.nodes, "one more")))
    assert account.one_more_gain == pytest.approx(more - answer.objective, abs=close)
    if problem.nodes:
        fewer = best(problem, lambda counts: sum(counts) < len(problem.nodes))
        assert account.one_fewer_loss == pytest.approx(answer.objective - fewer, abs=close)
    for index, job in enumerate(problem.jobs):
        told = explainer.job(job.id, all_scales=True)
        assert told.suitable == len(suited(problem, job))
        for worth in told.scales:
            forced = best(problem, lambda counts: counts[index] == worth.nodes)  # noqa: B023
            assert worth.possible == (forced > float("-inf"))
            if worth.possible:
                assert worth.loss == pytest.approx(answer.objective - forced, abs=close)


def planned(*jobs: PlannableJob) -> PlanProblem:
    """A plan for one a100 node with and one without `ib`, and two nodes without GPUs, one of them with `ib`."""
    nodes = (
        PlannableNode("g1", gpu_type="a100", features=("ib", "big")),
        PlannableNode("g2", gpu_type="a100"),
        PlannableNode("c1", features=("ib",)),
        PlannableNode("c2"),
    )
    points = tuple(ScalingPoint(count, rate) for count, rate in ((1, 100.0), (2, 150.0), (3, 180.0), (4, 200.0)))
    curve = JobCurve(points, 0.0, 0.0)
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    return plan_problem(PlanInput(nodes, jobs, curves={job.id: curve for job in jobs}), options)


def nodes_of(problem: PlanProblem) -> dict[str, tuple[str, ...]]:
    found = problem.allocation([solve(part.rest) for part in problem.parts])
    return {entry.job_id: entry.nodes for entry in found.assignments}


def test_jobs_with_different_needs_get_the_right_nodes() -> None:
    problem = planned(
        plannable("any"),
        plannable("gpu", needs=NodeNeeds(gpu="A100", excluded_nodes=("g1",))),
        plannable("both", high=1, needs=NodeNeeds(gpu="a100", constraint="ib&big")),
        plannable("ib", high=1, needs=NodeNeeds(constraint="ib|missing")),
    )
    assert nodes_of(problem) == {"any": ("c2",), "gpu": ("g2",), "both": ("g1",), "ib": ("c1",)}


def test_very_many_kinds_become_fewer_and_stay_right() -> None:
    needs = {f"j{number:02}": NodeNeeds(excluded_nodes=(f"n{number:02}",)) for number in range(99)}
    curve = JobCurve((ScalingPoint(1, 100.0),), 0.0, 0.0)
    nodes = tuple(PlannableNode(f"n{number:02}") for number in range(99))
    jobs = tuple(plannable(name, high=1, needs=need) for name, need in needs.items())
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    problem = plan_problem(PlanInput(nodes, jobs, curves=dict.fromkeys(needs, curve)), options)
    assert len(problem.whole.kinds) == 64
    given = nodes_of(problem)
    assert all(not set(names) & set(needs[name].excluded_nodes) for name, names in given.items())


def test_a_plan_without_needs_has_no_kinds() -> None:
    assert planned(plannable("any")).whole.kinds == ()


@pytest.mark.parametrize(
    ("needs", "smallest", "binding"),
    [
        (NodeNeeds(gpu="h100", constraint="ib"), 1, "what binds is GPU h100"),
        (NodeNeeds(gpu="a100", constraint="ib"), 3, "what binds is each of GPU a100, feature ib"),
        (NodeNeeds(gpu="a100", constraint="ib"), 2, "too few meet all that it needs"),
        (NodeNeeds(excluded_nodes=("g1", "c1")), 3, "what binds is none of 2 excluded nodes"),
    ],
)
def test_an_explanation_says_which_need_binds(
    process: SolverProcess, needs: NodeNeeds, smallest: int, binding: str
) -> None:
    problem = planned(plannable("j1", low=smallest, needs=needs))
    (part,) = problem.parts
    account = PartExplainer(PlannedPart("", part, nodes_of(problem)), ByKinds(process)).job("j1")
    assert account.more_reason is Reason.UNSUITABLE_NODES
    assert any(binding in line for line in sentences.of_job(account, part.rest))


def test_a_plan_that_would_take_too_long_is_not_explained_as_a_whole() -> None:
    problem = planned(*(plannable(f"j{number}", needs=NodeNeeds(gpu="a100")) for number in range(300)))
    plan = allocator_pb2.Plan(
        generation=1,
        problem=problem_to_proto(problem.whole),
        allocation=allocation_to_proto(problem.allocation([solve(part.rest) for part in problem.parts])),
    )
    with pytest.raises(PreconditionError):
        explain_plan(plan)


def test_a_message_tells_all_of_it() -> None:
    problem = planned(plannable("j1", needs=NodeNeeds(gpu="a100"))).whole
    assert problem.kinds
    assert problem.jobs[0].needs == (NeedCount("GPU a100", 2),)
    assert problem_from_proto(problem_to_proto(problem)) == problem


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kinds": (NodeKind(("c9",)),)}, "kinds[0].nodes[0]"),
        ({"kinds": (NodeKind(("c1",)), NodeKind(("c1",)))}, "kinds[1].nodes[0]"),
        ({"kinds": ()}, "jobs[0].unsuitable_kinds"),
        ({"jobs": (demand("a", unsuitable_kinds=(1,)),)}, "jobs[0].unsuitable_kinds[0]"),
        ({"jobs": (demand("a", unsuitable_kinds=(-1,)),)}, "jobs[0].unsuitable_kinds[0]"),
    ],
)
def test_kinds_that_contradict_the_problem_are_refused(change: dict[str, Any], field: str) -> None:
    problem = AllocationProblem(("c1", "c2"), 120.0, (demand("a", unsuitable_kinds=(0,)),), kinds=(NodeKind(("c1",)),))
    with pytest.raises(InvalidInputError) as error:
        solve(replace(problem, **change))
    assert error.value.field == field


def test_what_services_tell_of_nodes_and_jobs_reaches_the_plan() -> None:
    node = resources_pb2.Node(name="g1", pool="main/a100x4", gpu_type="a100", gpus=4, features=["ib"])
    assert node_from_proto(node) == PlannableNode("g1", 0.0, "main/a100x4", 4, "a100", ("ib",))
    needs = resources_pb2.NodeNeeds(gpu="a100", constraint="ib", pool="main", excluded_nodes=["n1"])
    told = job_from_proto(job_message("j000001", needs=needs)).plannable.needs
    assert told == NodeNeeds("a100", "ib", "main", ("n1",))


def test_a_measured_job_does_not_grow_to_where_too_few_nodes_suit_it() -> None:
    gpu = NodeNeeds(gpu="a100")
    problem = planned(plannable("j1", "g1", needs=gpu), plannable("j2")).whole
    pins = {nodes: apply_pins(problem, {"j1": ScalePin(nodes, grow=True, until=1e9)}) for nodes in (2, 3)}
    assert pins[2].pinned == {"j1": ("g1", "g2")}
    assert pins[3].pinned == {"j1": ("g1",)}
    assert pins[2].rest.kinds == (NodeKind(("c1", "c2")),)


def test_a_job_goes_to_the_pool_whose_nodes_suit_it() -> None:
    nodes = (
        *(PlannableNode(f"c{number}", pool="cpu") for number in (1, 2, 3)),
        PlannableNode("g1", pool="gpu/a100x4", gpu_type="a100"),
    )
    curve = JobCurve((ScalingPoint(1, 100.0),), 0.0, 0.0)
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    jobs = (
        plannable("j1", high=1, needs=NodeNeeds(gpu="a100")),
        plannable("j2", high=1, needs=NodeNeeds(pool="gpu")),
    )
    given = {job.id: curve for job in jobs}
    both = PlanInput((nodes[3], nodes[2]), (plannable("j0", high=1), jobs[0]), curves={"j0": curve, "j1": curve})
    assert nodes_of(plan_problem(both, options)) == {"j0": ("c3",), "j1": ("g1",)}
    alone = [nodes_of(plan_problem(PlanInput(nodes, (one,), curves=given), options)) for one in jobs]
    assert alone == [{"j1": ("g1",)}, {"j2": ("g1",)}]
