"""Plans with jobs of which each replica must be in one group: they equal a brute force, and no replica is partial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    NodeKind,
)
from malletrain.allocator.problem.group_table import GroupTable
from malletrain.allocator.problem.objective import scale_values
from malletrain.allocator.solvers.group_choice import settled
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import GroupPath, TopologyPreference, group_of
from tests.allocator.grouped_problems import Silent, brute_force, check, has_nodes

SLOW = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
LIMIT = 60.0
PATHS: list[GroupPath] = [("r1", "a"), ("r1", "a"), ("r1", "b"), ("r1", "b"), ("r2", "c"), ()]


@pytest.fixture(scope="module")
def process() -> Iterator[SolverProcess]:
    solver = SolverProcess()
    yield solver
    solver.close()


def curve(most: int, exponent: float) -> tuple[ScalingPoint, ...]:
    return tuple(ScalingPoint(nodes, 100.0 * nodes**exponent) for nodes in range(1, most + 1))


@st.composite
def with_replicas(draw: st.DrawFn) -> AllocationProblem:
    """Few groups, and jobs that hold about half of the nodes: some of replicas, whole ones or not."""
    nodes = tuple(f"n{number}" for number in range(draw(st.integers(3, 8))))
    paths = {node: path for node in nodes if (path := draw(st.sampled_from(PATHS)))}
    kinds = draw(st.sampled_from([(), (NodeKind(nodes[::3]),)]))
    jobs, free = [], list(nodes)
    for index in range(draw(st.integers(1, 3))):
        topology = TopologyPreference.REQUIRE_REPLICA if index == 0 else draw(st.sampled_from(TopologyPreference))
        level = draw(st.sampled_from([0, 2, 2, 1])) if topology.requires else 0
        by_replica = topology is TopologyPreference.REQUIRE_REPLICA
        size = draw(st.sampled_from([2, 2, 3])) if by_replica else 1
        most = size * draw(st.integers(1, 8 // size))
        held = draw(st.lists(st.sampled_from(free), max_size=min(4, most), unique=True)) if free else []
        if topology is TopologyPreference.REQUIRE:
            own = {group_of(paths.get(node, ()), level) for node in held[:1]}
            held = [node for node in held if group_of(paths.get(node, ()), level) in own]
        free = [node for node in free if node not in held]
        jobs.append(
            JobDemand(
                f"j{index}",
                size,
                most,
                curve(most, draw(st.sampled_from([0.5, 0.9, 1.2]))),
                scale_up_seconds=draw(st.sampled_from([0.0, 10.0])),
                scale_down_seconds=draw(st.sampled_from([0.0, 10.0, 200.0])),
                weight=draw(st.sampled_from([1.0, 2.0, 0.3])),
                current_nodes=tuple(held),
                unsuitable_kinds=(0,) if kinds and draw(st.booleans()) else (),
                topology=topology,
                topology_level=level,
                nodes_per_replica=size,
                permitted_nodes=tuple(range(size, most + 1, size)) if by_replica else (),
            )
        )
    cost = draw(st.sampled_from(CostModel))
    return AllocationProblem(nodes, 120.0, tuple(jobs), cost, paths=paths, kinds=kinds)


@SLOW
@given(problem=with_replicas(), formulation=st.sampled_from(Formulation))
def test_it_is_exact(process: SolverProcess, problem: AllocationProblem, formulation: Formulation) -> None:
    answer = solve(problem, formulation, LIMIT, process)
    assert answer.status == "OPTIMAL", answer.fallback_reason
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    assert answer.objective == pytest.approx(brute_force(problem), rel=1e-6, abs=1e-6)


@SLOW
@given(problem=with_replicas())
def test_without_an_answer_in_time_there_is_a_plan_all_the_same(problem: AllocationProblem) -> None:
    answer = solve(problem, process=Silent())
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    best = brute_force(problem)
    assert answer.objective <= best + 1e-6 * abs(best) + 1e-6
    if answer.status == "OPTIMAL":
        assert answer.objective == pytest.approx(best, rel=1e-6, abs=1e-6)
    elif "worth at most" in answer.fallback_reason:
        bound = float(answer.fallback_reason.rsplit("worth at most ", 1)[1].split("%")[0]) / 100
        assert answer.objective * (1 + bound) >= best * (1 - 1e-3) - 1e-6


@SLOW
@given(problem=with_replicas(), data=st.data())
def test_what_is_settled_can_be_placed(problem: AllocationProblem, data: st.DataObject) -> None:
    counts = [int(data.draw(st.sampled_from(scale_values(job, problem).sizes.tolist()))) for job in problem.jobs]
    if sum(counts) <= problem.capacity and settled(GroupTable.of(problem), counts) is not None:
        assert has_nodes(problem, counts)


@SLOW
@given(problem=with_replicas())
def test_the_scales_that_a_job_could_have_alone_are_known(problem: AllocationProblem) -> None:
    table = GroupTable.of(problem)
    alone = replace(problem, jobs=tuple(replace(job, current_nodes=()) for job in problem.jobs))
    for index, job in enumerate(problem.jobs):
        if index in table.options:
            others = [replace(other, current_nodes=()) for other in alone.jobs]
            others[index] = job
            own = replace(problem, jobs=tuple(others))
            for size in scale_values(job, problem).sizes.tolist():
                counts = [size if place == index else 0 for place in range(len(problem.jobs))]
                assert table.possible(index, size) == has_nodes(own, counts)
