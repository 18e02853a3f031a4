"""Jobs that prefer nodes near each other: they span as few groups as a brute force finds; counts do not change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    JobDemand,
    NodeKind,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.validation import validate
from malletrain.allocator.solvers.kind_flow import can_be_placed
from malletrain.allocator.solvers.near_nodes import Move, divide, fewest_groups
from malletrain.allocator.solvers.placement import place
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import allocation_to_proto, problem_from_proto, problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import GroupPath, NodeTree, TopologyPreference
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2
from tests.support.builders import demand, plannable

SLOW = settings(deadline=None, max_examples=200)
NEAR, NONE = TopologyPreference.PREFER, TopologyPreference.NONE
Case = tuple[AllocationProblem, list[int]]


def near(name: str, *held: str, topology: TopologyPreference = NEAR) -> JobDemand:
    curve = (ScalingPoint(1, 10.0), ScalingPoint(64, 400.0))
    return demand(name, *held, high=64, curve=curve, topology=topology)


def machine(spines: int, racks: int, nodes: int) -> dict[str, GroupPath]:
    """Nodes s0r0n0, s0r0n1 …, by path."""
    return {
        f"s{spine}r{rack}n{node}": (f"s{spine}", f"r{rack}")
        for spine in range(spines)
        for rack in range(racks)
        for node in range(nodes)
    }


def problem_of(paths: dict[str, GroupPath], *jobs: JobDemand, nodes: Sequence[str] = ()) -> AllocationProblem:
    found = AllocationProblem(tuple(nodes or paths), 120.0, jobs, paths=paths)
    validate(found)
    return found


def placed(problem: AllocationProblem, *counts: int) -> dict[str, tuple[str, ...]]:
    return {entry.job_id: entry.nodes for entry in place(problem, counts)}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Problems of up to seven nodes on two or three levels, some of no known place, and any counts."""
    nodes = [f"n{index}" for index in range(draw(st.integers(1, 7)))]
    depth = draw(st.integers(1, 3))
    path = st.lists(st.sampled_from(["a", "b", "c"]), max_size=depth).map(tuple)
    paths = {node: draw(path) for node in nodes}
    holders = draw(st.lists(st.integers(0, 3), min_size=len(nodes), max_size=len(nodes)))
    jobs, counts, left = [], list[int](), len(nodes)
    for index in range(3):
        held = [node for node, holder in zip(nodes, holders, strict=True) if holder == index]
        jobs.append(near(f"j{index}", *held, topology=draw(st.sampled_from([NEAR, NEAR, NONE]))))
        counts.append(draw(st.integers(0, left)))
        left -= counts[-1]
    stays = {node: float(draw(st.integers(0, 3))) for node in nodes}
    return replace(problem_of(paths, *jobs), expected_stay_seconds=stays), counts


def total_spans(tree: NodeTree, problem: AllocationProblem, nodes: dict[str, tuple[str, ...]]) -> tuple[int, ...]:
    spans = [tree.spans(nodes[job.id]) for job in problem.jobs if job.topology is NEAR]
    return tuple(map(sum, zip(*spans, strict=True))) if spans else (0,) * tree.depth


def every_placement(problem: AllocationProblem, counts: Sequence[int]) -> Iterator[dict[str, tuple[str, ...]]]:
    """All placements in which nobody migrates and jobs without a preference give up what they would in any case."""
    blind = replace(problem, jobs=tuple(replace(job, topology=NONE) for job in problem.jobs))
    usual = {entry.job_id: entry.nodes for entry in place(blind, counts)}
    kept: list[list[tuple[str, ...]]] = []
    for job, count in zip(problem.jobs, counts, strict=True):
        if count >= len(job.current_nodes):
            kept.append([job.current_nodes])
        else:
            kept.append(list(combinations(job.current_nodes, count)) if job.topology is NEAR else [usual[job.id]])

    def grown(index: int, chosen: dict[str, tuple[str, ...]]) -> Iterator[dict[str, tuple[str, ...]]]:
        if index == len(problem.jobs):
            yield dict(chosen)
            return
        job = problem.jobs[index]
        taken = {node for nodes in chosen.values() for node in nodes}
        free = [node for node in problem.nodes if node not in taken]
        for more in combinations(free, max(0, counts[index] - len(chosen[job.id]))):
            yield from grown(index + 1, {**chosen, job.id: (*chosen[job.id], *more)})

    def shrunk(index: int, chosen: dict[str, tuple[str, ...]]) -> Iterator[dict[str, tuple[str, ...]]]:
        if index == len(problem.jobs):
            yield from grown(0, chosen)
            return
        for own in kept[index]:
            yield from shrunk(index + 1, {**chosen, problem.jobs[index].id: own})

    yield from shrunk(0, {})


@SLOW
@given(cases())
def test_as_few_groups_as_a_brute_force_finds(case: Case) -> None:
    problem, counts = case
    tree = NodeTree.of(problem.nodes, problem.paths)
    best = min(total_spans(tree, problem, nodes) for nodes in every_placement(problem, counts))
    assert total_spans(tree, problem, placed(problem, *counts)) == best


@SLOW
@given(cases(), st.booleans())
def test_counts_are_kept_and_nobody_migrates(case: Case, with_kinds: bool) -> None:
    problem, counts = case
    if with_kinds:
        barred = (NodeKind(problem.nodes[::2]),)
        problem = replace(
            problem, kinds=barred, jobs=(replace(problem.jobs[0], unsuitable_kinds=(0,)), *problem.jobs[1:])
        )
        if not can_be_placed(problem, counts):
            return
    found = placed(problem, *counts)
    assert [len(found[job.id]) for job in problem.jobs] == counts
    assert len({node for nodes in found.values() for node in nodes}) == sum(counts)
    for job, count in zip(problem.jobs, counts, strict=True):
        held, nodes = set(job.current_nodes), set(found[job.id])
        assert held <= nodes if count >= len(held) else nodes <= held
        if job.unsuitable_kinds:
            assert not (nodes - held) & set(problem.nodes[::2])
    assert found == placed(problem, *counts)


@SLOW
@given(cases())
def test_without_a_preference_placement_is_what_it_was(case: Case) -> None:
    problem, counts = case
    blind = replace(problem, jobs=tuple(replace(job, topology=NONE) for job in problem.jobs))
    assert placed(blind, *counts) == placed(replace(blind, paths={}), *counts)


def test_large_problems_do_not_take_long_and_span_few_groups() -> None:
    paths = machine(4, 25, 20)
    rng = random.Random(7)
    nodes = list(paths)
    rng.shuffle(nodes)
    counts = [rng.choice([1, 2, 4, 8, 16]) for _ in range(250)]
    problem = problem_of(paths, *(near(f"j{index}") for index in range(250)), nodes=nodes)
    found = placed(problem, *counts)
    tree = NodeTree.of(nodes, paths)
    assert [len(found[f"j{index}"]) for index in range(250)] == counts
    assert total_spans(tree, problem, found)[0] <= 255
    assert total_spans(tree, problem, found)[1] <= 260


def test_a_job_that_starts_gets_the_rack_that_fits_it() -> None:
    problem = problem_of(machine(2, 2, 4), near("a"), near("b"))
    problem = replace(problem, nodes=tuple(name for name in problem.nodes if name != "s1r1n0"))
    assert placed(problem, 3, 4)["a"] == ("s1r1n1", "s1r1n2", "s1r1n3")


def test_a_job_grows_in_its_own_rack_and_gives_up_what_is_far() -> None:
    nodes = machine(2, 2, 4)
    grows = problem_of(nodes, near("a", "s1r1n0"))
    assert placed(grows, 3)["a"] == ("s1r1n0", "s1r1n1", "s1r1n2")
    shrinks = problem_of(nodes, near("a", "s0r0n0", "s1r0n1", "s1r0n2", "s1r1n0"))
    assert placed(shrinks, 2)["a"] == ("s1r0n1", "s1r0n2")


def test_within_a_group_the_longest_stay_comes_first() -> None:
    problem = problem_of(machine(1, 2, 3), near("a"))
    stays = {"s0r0n0": 50.0, "s0r1n2": 40.0, "s0r1n1": 30.0, "s0r0n1": 1.0}
    problem = replace(
        problem, nodes=tuple(name for name in problem.nodes if name != "s0r0n2"), expected_stay_seconds=stays
    )
    assert placed(problem, 2)["a"] == ("s0r0n0", "s0r0n1")
    assert placed(replace(problem, jobs=(near("a", topology=NONE),)), 2)["a"] == ("s0r0n0", "s0r1n2")


def test_jobs_without_preference_take_what_is_left() -> None:
    problem = problem_of(machine(1, 2, 2), near("none", topology=NONE), near("near"))
    problem = replace(problem, nodes=tuple(name for name in problem.nodes if name != "s0r0n0"))
    assert placed(problem, 1, 2) == {"none": ("s0r0n1",), "near": ("s0r1n0", "s0r1n1")}


def test_needs_and_nearness_together() -> None:
    paths = machine(1, 3, 2)
    suited = ("s0r0n0", "s0r1n0", "s0r2n0", "s0r2n1")
    kind = NodeKind(tuple(name for name in paths if name not in suited))
    jobs = (replace(near("a"), unsuitable_kinds=(0,)), near("b"))
    problem = replace(problem_of(paths, near("a"), near("b")), kinds=(kind,), jobs=jobs)
    found = placed(problem, 2, 2)
    assert found["a"] == ("s0r2n0", "s0r2n1")
    assert NodeTree.of(paths, paths).spans(found["b"]) == (1, 1)


def test_groups_of_one_name_in_different_groups_are_different() -> None:
    tree = NodeTree.of("abcd", {"a": ("s1", "r1"), "b": ("s2", "r1"), "c": ("s1",)})
    assert tree.spans("ab") == (2, 2)
    assert tree.spans("ac") == (1, 2)
    assert tree.spans("d") == (1, 1)
    assert tree.spans("") == (0, 0)
    assert NodeTree.of("ab", {}).spans("ab") == (1,)


def test_a_search_that_would_take_too_long_ends() -> None:
    tree = NodeTree.of(*(lambda paths: (paths, paths))(machine(1, 12, 6)))
    moves = [Move((0,) * 12, 11) for _ in range(6)]
    found = divide(tree, moves, [6] * 12)
    assert [sum(share.values()) for share in found.shares] == [11] * 6
    assert found.spans[0] == 6


def test_a_fitting_group_with_fewer_groups_inside_is_better_than_a_tighter_one() -> None:
    paths = {f"a{index}": ("a", f"r{index}") for index in range(4)} | {f"b{index}": ("b", "r") for index in range(6)}
    tree = NodeTree.of(paths, paths)
    assert fewest_groups(tree, tree.per_leaf(paths), (), 4) == {tree.leaf_of["b0"]: 4}


def test_problems_keep_their_groups_on_the_wire() -> None:
    problem = problem_of(machine(2, 1, 2), near("a"), near("b", topology=NONE))
    assert problem_from_proto(problem_to_proto(problem)) == problem
    wider = replace(problem, paths={**problem.paths, "gone": ("s9",)})
    assert problem_from_proto(problem_to_proto(wider)) == problem


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda groups: groups[0].topology.extend("abcdefgh"), r"groups\[0\].topology"),
        (lambda groups: groups[1].topology.append(""), r"groups\[1\].topology"),
        (lambda groups: groups[0].topology.append("x" * 129), r"groups\[0\].topology"),
        (lambda groups: groups[0].nodes.append("unknown"), r"groups\[0\].nodes\[2\]"),
        (lambda groups: groups[1].nodes.append("s0r0n0"), r"groups\[1\].nodes\[2\]"),
    ],
)
def test_groups_that_can_not_be_are_refused(change: object, field: str) -> None:
    message = problem_to_proto(problem_of(machine(2, 1, 2), near("a")))
    assert callable(change)
    change(message.groups)
    with pytest.raises(InvalidInputError, match=field):
        problem_from_proto(message)


def test_an_unknown_preference_is_refused() -> None:
    message = problem_to_proto(problem_of(machine(1, 1, 2), near("a")))
    message.jobs[0].topology = 7  # type: ignore[assignment]
    with pytest.raises(InvalidInputError, match="topology"):
        problem_from_proto(message)


def plan_input(topology: TopologyPreference) -> PlanInput:
    paths = machine(2, 2, 2)
    nodes = tuple(PlannableNode(name, 10.0, topology=path) for name, path in paths.items())
    curve = JobCurve((ScalingPoint(1, 10.0), ScalingPoint(2, 19.0)), 1.0, 1.0)
    job = plannable("a", low=2, high=2, topology=topology)
    return PlanInput(nodes, (job,), curves={"a": curve})


def test_a_plan_knows_where_nodes_are_if_a_job_minds() -> None:
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT, span_pools=True)
    asked = plan_problem(plan_input(NEAR), options).whole
    assert asked.paths == machine(2, 2, 2)
    assert asked.jobs[0].topology is NEAR
    assert plan_problem(plan_input(NONE), options).whole.paths == {}


def test_an_explanation_tells_the_groups() -> None:
    grows = replace(near("a", "s0r0n0"), min_nodes=4, max_nodes=4)
    problem = problem_of(machine(2, 2, 2), grows, near("b", topology=NONE))
    solved = solve(problem)
    plan = allocator_pb2.Plan(problem=problem_to_proto(problem), allocation=allocation_to_proto(solved))
    found = explain_plan(plan, "a")
    nodes = next(entry.nodes for entry in solved.assignments if entry.job_id == "a")
    spans = NodeTree.of(problem.nodes, problem.paths).spans(nodes)
    told = "it prefers nodes near each other; groups that its nodes are in"
    assert f"{told}: {spans[0]} of level 1, {spans[1]} of level 2" in found.jobs[0].sentences
    assert not any("near each other" in text for text in explain_plan(plan, "b").jobs[0].sentences)
    taken = next(name for name in nodes if name != "s0r0n0")
    assert any("it prefers nodes near each other" in text for text in explain_plan(plan, node=taken).node.sentences)
    assert explain_plan(plan, node=taken).node.rank == 0
