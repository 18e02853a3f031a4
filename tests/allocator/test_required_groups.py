"""Plans with jobs whose nodes must be in groups: they equal a brute force, and nobody migrates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.explanation.forced_by_kind import ByKinds
from malletrain.allocator.explanation.worth import JobAccount, PartExplainer, PlannedPart, Reason
from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    CostModel,
    Formulation,
    JobDemand,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.group_table import GroupTable
from malletrain.allocator.problem.objective import scale_values
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.solvers.group_choice import settle_groups
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import allocation_to_proto, job_from_proto, problem_from_proto, problem_to_proto
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import GroupPath, TopologyPreference
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2, resources_pb2
from tests.allocator.grouped_problems import best_at, brute_force, check, has_nodes, in_groups
from tests.support.builders import demand, job_message, plannable
from tests.support.solvers import Silent

SLOW = settings(deadline=None, max_examples=150)
LIMIT = 60.0


@SLOW
@given(problem=in_groups(), formulation=st.sampled_from(list(Formulation)))
def test_it_is_exact(process: SolverProcess, problem: AllocationProblem, formulation: Formulation) -> None:
    answer = solve(problem, formulation, LIMIT, process)
    assert answer.status == "OPTIMAL", answer.fallback_reason
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    assert answer.objective == pytest.approx(brute_force(problem), rel=1e-6, abs=1e-6)
    per_job = [scale_values(job, problem) for job in problem.jobs]
    counted = sum(
        float(scales.values[scales.index(len(entry.nodes))])
        for scales, entry in zip(per_job, answer.assignments, strict=True)
    )
    assert answer.objective == pytest.approx(counted)


@SLOW
@given(problem=in_groups())
def test_without_an_answer_in_time_there_is_a_plan_all_the_same(problem: AllocationProblem) -> None:
    answer = solve(problem, process=Silent())
    check(problem, {entry.job_id: entry.nodes for entry in answer.assignments})
    best = brute_force(problem)
    assert answer.objective <= best + 1e-6 * abs(best) + 1e-6
    if answer.status == "OPTIMAL":
        assert answer.objective == pytest.approx(best, rel=1e-6, abs=1e-6)


@SLOW
@given(problem=in_groups(), data=st.data())
def test_what_is_settled_can_be_placed(problem: AllocationProblem, data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, len(problem.nodes))) for _ in problem.jobs]
    # A solver asks for no more nodes than the pool has.
    if sum(counts) <= problem.capacity and settle_groups(GroupTable.of(problem), counts) is not None:
        assert has_nodes(problem, counts)


RACKS: dict[str, GroupPath] = {
    "n1": ("row1", "rack1"),
    "n2": ("row1", "rack1"),
    "n3": ("row1", "rack2"),
    "n4": ("row1", "rack2"),
    "n5": ("row1", "rack2"),
    "n6": ("row2", "rack1"),
}


def job(
    name: str,
    least: int = 1,
    most: int = 6,
    *held: str,
    level: int = 2,
    topology: TopologyPreference = TopologyPreference.REQUIRE,
) -> JobDemand:
    level = level if topology is TopologyPreference.REQUIRE else 0
    return demand(name, *held, low=least, high=most, power=0.9, topology=topology, topology_level=level)


def racks(*jobs: JobDemand) -> AllocationProblem:
    return AllocationProblem(tuple(RACKS), 120.0, jobs, paths=RACKS)


def given_nodes(problem: AllocationProblem) -> list[str]:
    return [" ".join(entry.nodes) for entry in solve(problem).assignments]


def test_a_job_takes_the_best_group_of_its_level() -> None:
    assert given_nodes(racks(job("a"))) == ["n3 n4 n5"]
    assert given_nodes(racks(job("a", level=0))) == ["n3 n4 n5"]
    assert given_nodes(racks(job("a", level=1))) == ["n1 n2 n3 n4 n5"]
    assert given_nodes(racks(job("a", level=3))) == [""]  # no node is known to be in such a group
    assert given_nodes(racks(job("a", 4))) == [""]


def test_groups_of_one_name_in_different_groups_are_different_ones() -> None:
    assert given_nodes(racks(job("a", 2, 2), job("b", 3, 3), job("c", 1, 1))) == ["n1 n2", "n3 n4 n5", "n6"]


def test_a_job_stays_in_its_group_and_one_that_stops_may_start_in_another() -> None:
    # In rack1 there is room for two nodes, in rack2 for three: it does not move for that.
    assert given_nodes(racks(job("a", 1, 3, "n1"))) == ["n1 n2"]
    # Too few are left of its rack: it stops, and with no nodes it may start anywhere.
    assert given_nodes(racks(job("a", 3, 3, "n1"))) == [""]
    assert given_nodes(racks(job("a", 3, 3))) == ["n3 n4 n5"]


def test_one_that_has_come_to_be_in_several_groups_keeps_the_best_part() -> None:
    assert given_nodes(racks(job("a", 1, 3, "n1", "n3", "n4"))) == ["n3 n4"]


def test_others_give_way_where_that_is_better() -> None:
    anywhere = job("b", 1, 6, "n3", "n1", "n6", topology=TopologyPreference.NONE)
    needs_two = replace(job("a", 3, 3), weight=5.0)
    assert given_nodes(racks(needs_two, anywhere)) == ["n3 n4 n5", "n1 n6"]


def test_within_its_group_a_job_takes_nodes_near_each_other() -> None:
    problem = racks(job("a", 2, 2, level=1), job("b", 4, 4, topology=TopologyPreference.NONE))
    stays = {"n1": 900.0, "n3": 800.0, "n2": 1.0}
    assert given_nodes(replace(problem, expected_stay_seconds=stays)) == ["n1 n2", "n3 n4 n5 n6"]


def test_a_large_problem_is_solved_without_highs() -> None:
    paths = {f"n{number:04}": (f"rack{number // 16}",) for number in range(800)}
    jobs = tuple(
        replace(job(f"j{number}", 1, 16 - number % 5, level=1), weight=1.0 + number % 3) for number in range(80)
    )
    # Every third job has nodes already, so that rooms differ.
    held = {3 * at: tuple(f"n{16 * at + place:04}" for place in range(3 + at % 9)) for at in range(26)}
    jobs = tuple(replace(one, current_nodes=held.get(at, ())) for at, one in enumerate(jobs))
    problem = AllocationProblem(tuple(paths), 120.0, jobs, paths=paths)
    answer = solve(problem, process=Silent())
    for one, entry in zip(jobs, answer.assignments, strict=True):
        assert len({paths[node] for node in entry.nodes}) <= 1
        assert set(entry.nodes) >= set(one.current_nodes) or set(entry.nodes) <= set(one.current_nodes)
    assert sum(len(entry.nodes) for entry in answer.assignments) > 700
    anywhere = tuple(replace(one, topology=TopologyPreference.NONE, topology_level=0) for one in jobs)
    assert answer.objective > 0.93 * solve(replace(problem, jobs=anywhere)).objective


def explained(process: SolverProcess, problem: AllocationProblem, name: str = "a") -> tuple[JobAccount, str]:
    answer = solve(problem, process=process)
    part = PlannedPart("", apply_pins(problem, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    account = PartExplainer(part, ByKinds(process)).job(name)
    return account, "; ".join(sentences.of_job(account, problem))


def test_an_explanation_says_what_the_requirement_costs(process: SolverProcess) -> None:
    problem = racks(job("a", 1, 6))
    account, told = explained(process, problem)
    free = solve(racks(job("a", 1, 6, topology=TopologyPreference.NONE))).objective
    assert account.group_cost == pytest.approx(free - solve(problem).objective)
    assert account.suitable == 3
    assert account.more_reason is Reason.GROUP_TOO_SMALL
    assert "not 4: the largest group of level 2 has 3 nodes that suit it" in told
    assert "all its nodes must be in one group of level 2: without that the plan would be worth " in told
    _, told = explained(process, racks(job("a", 1, 3)))
    assert "all its nodes must be in one group of level 2: that costs the plan nothing" in told
    _, told = explained(process, racks(job("a", 1, 3, "n1")))
    assert "not 3: its group has 2 nodes for it, and it stays there while it has nodes" in told
    account, told = explained(process, racks(job("a", 4)))
    assert account.more_reason is Reason.GROUP_TOO_SMALL
    assert "no group of level 2 has as many nodes as it needs at least" in told


@settings(SLOW, max_examples=40)
@given(problem=in_groups())
def test_an_explanation_says_what_other_plans_would_have_lost(
    process: SolverProcess, problem: AllocationProblem
) -> None:
    answer = solve(problem, process=process)
    part = PlannedPart("", apply_pins(problem, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    explainer = PartExplainer(part, ByKinds(process))
    largest = max(1.0, sum(float(abs(scale_values(job, problem).values).max()) for job in problem.jobs))
    for index, one in enumerate(problem.jobs):
        told = explainer.job(one.id, all_scales=True)
        for worth in told.scales:
            forced = best_at(problem, index, worth.nodes)
            assert worth.possible == (forced > float("-inf"))
            if worth.possible:
                assert worth.loss == pytest.approx(answer.objective - forced, abs=1e-6 * largest)
        if one.topology.requires:
            jobs = list(problem.jobs)
            jobs[index] = replace(one, topology=TopologyPreference.NONE, topology_level=0)
            free = brute_force(replace(problem, jobs=tuple(jobs)))
            assert told.group_cost == pytest.approx(free - answer.objective, abs=1e-6 * largest)


def test_a_measured_job_grows_within_its_group_only() -> None:
    problem = racks(job("a", 1, 4, "n1"), job("b", 1, 4))
    pins = {nodes: apply_pins(problem, {"a": ScalePin(nodes, grow=True, until=1e9)}) for nodes in (2, 3)}
    assert pins[2].pinned == {"a": ("n1", "n2")}
    assert pins[3].pinned == {"a": ("n1",)}


def test_a_job_goes_to_the_pool_with_the_largest_group() -> None:
    options = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
    small = [PlannableNode(f"a{number}", pool="a", topology=(f"rack{number}",)) for number in range(4)]
    large = [PlannableNode(f"b{number}", pool="b", topology=("rack9",)) for number in range(2)]
    curve = JobCurve((ScalingPoint(1, 100.0), ScalingPoint(2, 150.0)), 0.0, 0.0)
    one = plannable("j1", high=2, topology=TopologyPreference.REQUIRE, topology_level=1)
    problem = plan_problem(PlanInput((*small, *large), (one,), curves={"j1": curve}), options)
    found = problem.allocation([solve(part.rest) for part in problem.parts])
    assert found.assignments[0].nodes == ("b0", "b1")


def test_a_message_tells_all_of_it() -> None:
    problem = racks(job("a"), job("b", level=0), job("c", topology=TopologyPreference.PREFER))
    assert problem_from_proto(problem_to_proto(problem)) == problem
    told = job_from_proto(
        job_message("j000001", topology=resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE, topology_level=2)
    ).plannable
    assert (told.topology, told.topology_level) == (TopologyPreference.REQUIRE, 2)


@pytest.mark.parametrize(("topology", "level"), [("REQUIRE", 9), ("REQUIRE", -1), ("PREFER", 1), ("UNSPECIFIED", 1)])
def test_levels_that_can_not_be_meant_are_refused(topology: str, level: int) -> None:
    message = problem_to_proto(racks(job("a")))
    message.jobs[0].topology = resources_pb2.TopologyPreference.Value(f"TOPOLOGY_PREFERENCE_{topology}")
    message.jobs[0].topology_level = level
    with pytest.raises(InvalidInputError) as error:
        problem_from_proto(message)
    assert error.value.field == "jobs[a].topology_level"


def test_the_whole_plan_is_explained(process: SolverProcess) -> None:
    problem = racks(job("a"), job("b", 4))
    plan = allocator_pb2.Plan(
        generation=1, problem=problem_to_proto(problem), allocation=allocation_to_proto(solve(problem, process=process))
    )
    found = explain_plan(plan)
    assert found.jobs[0].group_cost > 0
    assert found.jobs[0].sentences[-1] == "groups that its nodes are in: 1 of level 1, 1 of level 2"
    assert found.jobs[1].more_reason == allocator_pb2.SCALE_REASON_GROUP_TOO_SMALL
