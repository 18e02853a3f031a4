"""What the plan before wanted for jobs that have not got it yet comes first: anything else would be a migration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    JobDemand,
    NodeKind,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, build_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.solvers.kind_flow import can_be_placed
from malletrain.allocator.solvers.placement import place
from malletrain.allocator.wire.messages import problem_from_proto, problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import TopologyPreference
from tests.allocator.grouped_problems import in_groups
from tests.allocator.problems import problems
from tests.support.builders import demand

CURVE = (ScalingPoint(1, 1.0), ScalingPoint(9, 9.0))


def placed(problem: AllocationProblem, *counts: int) -> dict[str, set[str]]:
    return {entry.job_id: set(entry.nodes) for entry in place(problem, counts)}


def problem_of(nodes: str, *jobs: JobDemand, stays: Sequence[str] = ()) -> AllocationProblem:
    """Problem of nodes with names of one letter; those of `stays` are expected to stay longest."""
    return AllocationProblem(tuple(nodes), 120.0, jobs, expected_stay_seconds=dict.fromkeys(stays, 100.0))


@st.composite
def cases(draw: st.DrawFn) -> tuple[AllocationProblem, list[int]]:
    """Problems with and without kinds of nodes, and numbers of nodes that can be placed."""
    problem = draw(st.one_of(problems(), in_groups()))
    jobs = tuple(replace(job, topology=TopologyPreference.NONE, topology_level=0) for job in problem.jobs)
    problem = replace(problem, jobs=jobs)
    left, counts = len(problem.nodes), list[int]()
    for _ in jobs:
        counts.append(draw(st.integers(0, left)))
        left -= counts[-1]
    return problem, counts if can_be_placed(problem, counts) else [len(job.current_nodes) for job in jobs]


@settings(deadline=None, max_examples=300)
@given(case=cases(), random=st.randoms(use_true_random=False))
def test_the_same_numbers_are_the_same_nodes_whatever_stays_are_expected_by_now(
    case: tuple[AllocationProblem, list[int]], random: Random
) -> None:
    problem, counts = case
    first = placed(problem, *counts)
    wanting = tuple(replace(job, wanted_nodes=tuple(sorted(first[job.id]))) for job in problem.jobs)
    stays = {name: random.random() for name in problem.nodes}
    assert placed(replace(problem, jobs=wanting, expected_stay_seconds=stays), *counts) == first


def test_more_nodes_are_those_that_are_wanted_and_the_best_others() -> None:
    problem = problem_of("abcdef", demand("j1", "a", wanted_nodes=tuple("abc")), stays="ef")
    assert placed(problem, 2) == {"j1": {"a", "b"}}
    assert placed(problem, 4) in ({"j1": {"a", "b", "c", "e"}}, {"j1": {"a", "b", "c", "f"}})


def test_fewer_nodes_are_without_those_that_it_has_been_told_to_give_up() -> None:
    """And these are free for the job that waits for them."""
    problem = problem_of(
        "abcde",
        demand("j1", "a", "b", "c", wanted_nodes=tuple("ac")),
        demand("j2", "d", wanted_nodes=tuple("bd")),
        stays="be",
    )
    assert placed(problem, 2, 2) == {"j1": {"a", "c"}, "j2": {"b", "d"}}
    assert placed(problem, 1, 3) in ({"j1": {"a"}, "j2": {"b", "d", "e"}}, {"j1": {"c"}, "j2": {"b", "d", "e"}})


def test_nodes_that_are_gone_or_that_another_job_keeps_do_not_matter() -> None:
    problem = problem_of("abc", demand("j1", "a", wanted_nodes=("a", "b", "gone", "c", "c")), demand("j2", "b"))
    assert placed(problem, 2, 1) == {"j1": {"a", "c"}, "j2": {"b"}}


def test_nodes_that_do_not_suit_a_job_any_more_are_not_taken() -> None:
    grows = demand("j1", "a", wanted_nodes=tuple("abc"), unsuitable_kinds=(0,))
    problem = replace(problem_of("abcd", grows), kinds=(NodeKind(("b",)),))
    assert placed(problem, 3) == {"j1": {"a", "c", "d"}}
    assert placed(problem, 2) == {"j1": {"a", "c"}}


def test_nodes_that_are_wanted_come_before_near_ones() -> None:
    grows = demand("j1", "a", wanted_nodes=tuple("ac"), topology=TopologyPreference.PREFER)
    near = {"a": ("r1",), "b": ("r1",), "c": ("r2",), "d": ("r2",)}
    problem = replace(problem_of("abcd", grows, demand("j2")), paths=near)
    assert placed(problem, 2, 0)["j1"] == {"a", "c"}
    assert placed(problem, 3, 1)["j1"] in ({"a", "b", "c"}, {"a", "c", "d"})
    kinds = replace(problem, kinds=(NodeKind(("d",)),), jobs=(grows, demand("j2", unsuitable_kinds=(0,))))
    assert placed(kinds, 2, 0)["j1"] == {"a", "c"}


def test_a_plan_that_follows_another_does_not_move_jobs_that_have_not_got_its_nodes_yet() -> None:
    """Plans are made from the nodes that a job is commanded to use: it may be commanded others before it is applied."""
    before = [
        PlannableJob("j1", 1, 9, current_nodes=("a",), wanted_nodes=("a", "b", "c")),
        PlannableJob("j2", 1, 9, current_nodes=("e",), wanted_nodes=("e",)),
    ]
    curve = JobCurve((ScalingPoint(1, 1.0), ScalingPoint(9, 9.0)), 0.0, 0.0)
    nodes = tuple(
        PlannableNode(name, stay) for name, stay in zip("abcdef", (9.0, 1.0, 1.0, 9.0, 9.0, 9.0), strict=True)
    )
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    problem = build_problem(PlanInput(nodes, tuple(before), curves={"j1": curve, "j2": curve}), options)
    assert [job.wanted_nodes for job in problem.jobs] == [("a", "b", "c"), ()]
    assert placed(problem, 4, 2)["j1"] > {"a", "b", "c"}
    assert problem_from_proto(problem_to_proto(problem)) == problem


def test_a_job_that_wants_nodes_has_them_before_one_that_prefers_near_ones() -> None:
    near = {"a": ("r1",), "b": ("r1",), "c": ("r2",)}
    prefers = demand("j1", topology=TopologyPreference.PREFER)
    problem = replace(problem_of("abc", prefers, demand("j2", wanted_nodes=tuple("a"))), paths=near)
    assert placed(problem, 2, 1) == {"j1": {"b", "c"}, "j2": {"a"}}


def test_so_it_is_where_a_job_that_prefers_near_nodes_shrinks_among_kinds() -> None:
    shrinks = demand("j1", "a", "b", wanted_nodes=tuple("b"), topology=TopologyPreference.PREFER)
    paths = dict.fromkeys("abc", ("r1",))
    problem = replace(problem_of("abc", shrinks, stays="a"), paths=paths)
    assert placed(problem, 1) == {"j1": {"b"}}
    kinds = replace(problem, kinds=(NodeKind(("c",)),), jobs=(replace(shrinks, unsuitable_kinds=(0,)),))
    assert placed(kinds, 1) == {"j1": {"b"}}
