"""Plans with jobs of which each replica must be in one group: they equal a brute force, and no replica is partial."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.forced_by_kind import ByKinds
from malletrain.allocator.explanation.worth import PartExplainer, PlannedPart, Reason
from malletrain.allocator.problem.allocation_problem import (
    Allocation,
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    NodeKind,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.group_table import GroupTable
from malletrain.allocator.problem.objective import scale_values
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.solvers.group_choice import settle_groups
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import problem_from_proto, problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import GroupPath, TopologyPreference, group_of
from malletrain.runtime.errors import InvalidInputError
from tests.allocator.grouped_problems import brute_force, check, check_replicas, has_nodes
from tests.support.builders import demand
from tests.support.solvers import Silent

SLOW = settings(deadline=None, max_examples=300)
LIMIT = 60.0
PATHS: list[GroupPath] = [("r1", "a"), ("r1", "a"), ("r1", "b"), ("r1", "b"), ("r2", "c"), ()]


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
    if sum(counts) <= problem.capacity and settle_groups(GroupTable.of(problem), counts) is not None:
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


MACHINES: dict[str, GroupPath] = {f"{name}.gpu{number}": ("row1", name) for name in "abc" for number in range(4)}


def replicas(name: str, size: int, most: int, *held: str, level: int = 0) -> JobDemand:
    """A job with replicas of so many nodes, `a0` stands for `a.gpu0`."""
    return JobDemand(
        name,
        size,
        most,
        curve(most, 0.9),
        current_nodes=gpus(*held),
        permitted_nodes=tuple(range(size, most + 1, size)),
        topology=TopologyPreference.REQUIRE_REPLICA,
        topology_level=level,
        nodes_per_replica=size,
    )


def single(name: str, most: int, *held: str) -> JobDemand:
    return demand(name, *gpus(*held), high=most, power=0.9, weight=10.0)


def gpus(*short: str) -> tuple[str, ...]:
    return tuple(f"{name[0]}.gpu{name[1:]}" for name in short)


def given_nodes(*jobs: JobDemand, problem: AllocationProblem | None = None) -> list[str]:
    """Nodes of each job, by their short names."""
    problem = problem or AllocationProblem(tuple(MACHINES), 120.0, jobs, paths=MACHINES)
    answer = solve(problem)
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    return [" ".join(name.replace(".gpu", "") for name in entry.nodes) for entry in answer.assignments]


def test_a_job_has_whole_machines_beside_single_gpus() -> None:
    assert given_nodes(replicas("w", 4, 8), single("s", 3)) == ["a0 a1 a2 a3 b0 b1 b2 b3", "c0 c1 c2"]
    # A single GPU in use makes a machine no whole one.
    assert given_nodes(replicas("w", 4, 12), single("s", 1, "b2")) == ["a0 a1 a2 a3 c0 c1 c2 c3", "b2"]
    assert given_nodes(replicas("w", 8, 8)) == [""], "no machine has eight"
    (row,) = given_nodes(replicas("w", 8, 8, level=1))
    assert len(row.split()) == 8
    assert given_nodes(replicas("w", 4, 12, level=3)) == [""], "no node is known to be in such a group"


def test_a_replica_that_has_lost_a_node_is_completed_or_given_up() -> None:
    lost = replicas("w", 2, 4, "a0", "b0", "b1")
    assert given_nodes(lost) == ["a0 a1 b0 b1"]
    assert given_nodes(lost, single("s", 3, "a1", "a2", "a3")) == ["b0 b1", "a1 a2 a3"]
    assert given_nodes(replicas("w", 2, 2, "a0", "b0")) == [""], "both are parts: with no nodes it may start anywhere"


def test_a_job_that_grows_takes_replicas_near_those_that_it_has() -> None:
    paths: dict[str, GroupPath] = {
        f"{name}.gpu{number}": ("row1" if name in "ac" else "row2", name) for name in "abc" for number in range(4)
    }
    job = replicas("w", 4, 8, "c0", "c1", "c2", "c3")
    problem = AllocationProblem(tuple(reversed(paths)), 120.0, (job,), paths=paths)
    # Those that it has stay the first ones.
    assert given_nodes(problem=problem) == ["c3 c2 c1 c0 a3 a2 a1 a0"]


def test_a_measured_or_kept_job_has_whole_replicas_beside_an_incomplete_one() -> None:
    jobs = replicas("w", 2, 4, "a0", "b0", "b1"), replicas("p", 2, 6, "a1", "a2", "c0", "c1")
    problem = AllocationProblem(tuple(MACHINES), 120.0, jobs, paths=MACHINES)
    for nodes, grow in ((2, False), (4, False), (6, True)):
        pinned = apply_pins(problem, {"p": ScalePin(nodes, grow, 1e9)})
        assert len(pinned.pinned["p"]) == nodes
        check(replace(problem, jobs=jobs[1:]), dict(pinned.pinned))


def test_a_job_goes_to_the_pool_with_the_most_whole_replicas() -> None:
    nodes = tuple(
        PlannableNode(name, pool="many" if name[0] in "ab" else "few", topology=(name[0] if name[0] == "c" else name,))
        for name in MACHINES
    )
    job = PlannableJob(
        "j1", 4, 8, permitted_nodes=(4, 8), topology=TopologyPreference.REQUIRE_REPLICA, nodes_per_replica=4
    )
    plan = PlanInput(nodes, (job,), curves={"j1": JobCurve(curve(8, 0.9), 0.0, 0.0)})
    parts = plan_problem(plan, PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)).parts
    (chosen,) = [part for part in parts if part.whole.jobs]
    assert {name[0] for name in chosen.whole.nodes} == {"c"}, "of the eight others each is a group of its own"


def test_an_explanation_says_what_replicas_lack(process: SolverProcess) -> None:
    job = replicas("w", 4, 16)
    problem = AllocationProblem(tuple(MACHINES)[:-1], 120.0, (job,), paths=MACHINES)
    answer = solve(problem, process=process)
    part = PlannedPart("", apply_pins(problem, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    account = PartExplainer(part, ByKinds(process)).job("w")
    told = "; ".join(sentences.of_job(account, problem))
    assert (account.chosen.nodes, account.suitable) == (8, 8)
    assert "the 4 nodes of each replica must be in one innermost group: that costs the plan nothing" in told
    free = replicas("w", 2, 10, level=0)
    uneven = AllocationProblem(gpus("a0", "a1", "a2", "b0", "b1", "b2"), 120.0, (free,), paths=MACHINES)
    answer = solve(uneven, process=process)
    part = PlannedPart("", apply_pins(uneven, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    account = PartExplainer(part, ByKinds(process)).job("w")
    told = "; ".join(sentences.of_job(account, uneven))
    assert account.more_reason is Reason.GROUP_TOO_SMALL
    assert "not 6: each replica needs 2 nodes in one innermost group, and all together have 4 nodes for whole" in told
    assert account.group_cost > 0


def test_a_message_tells_all_of_it() -> None:
    problem = AllocationProblem(tuple(MACHINES), 120.0, (replicas("w", 4, 8, level=2),), paths=MACHINES)
    assert problem_from_proto(problem_to_proto(problem)) == problem
    message = problem_to_proto(problem)
    message.jobs[0].nodes_per_replica = 1
    with pytest.raises(InvalidInputError) as error:
        problem_from_proto(message)
    assert error.value.field == "jobs[w].nodes_per_replica"
    with pytest.raises(InvalidInputError) as error:
        solve(replace(problem, jobs=(replace(problem.jobs[0], nodes_per_replica=1),)))
    assert error.value.field == "jobs[0].nodes_per_replica"


def test_a_large_problem_is_solved_without_highs() -> None:
    machines = [f"n{number}" for number in range(60)]
    paths: dict[str, GroupPath] = {f"{machine}.gpu{number}": (machine,) for machine in machines for number in range(8)}
    jobs = tuple(replicas(f"w{size}{at}", size, 4 * size) for at in range(6) for size in (2, 4, 8))
    held = {3 * at: tuple(f"n{at}.gpu{number}" for number in range(2 + at % 2)) for at in range(6)}
    jobs = tuple(replace(one, current_nodes=held.get(at, ())) for at, one in enumerate(jobs))
    others = tuple(single(f"s{at}", 8) for at in range(30))
    problem = AllocationProblem(tuple(paths), 120.0, (*jobs, *others), paths=paths)
    answer = solve(problem, process=Silent())
    check_all_replicas(problem, answer)
    anywhere = tuple(replace(one, topology=TopologyPreference.NONE) for one in jobs)
    assert answer.objective > 0.93 * solve(replace(problem, jobs=(*anywhere, *others))).objective


def check_all_replicas(problem: AllocationProblem, answer: Allocation) -> None:
    for job, entry in zip(problem.jobs, answer.assignments, strict=True):
        assert set(entry.nodes) >= set(job.current_nodes) or set(entry.nodes) <= set(job.current_nodes)
        if job.topology is TopologyPreference.REQUIRE_REPLICA:
            check_replicas(problem, job, entry.nodes)
