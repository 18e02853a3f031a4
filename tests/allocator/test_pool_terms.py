"""Objective, T_fwd and limits of single pools: chosen by their names, planned, told and explained."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.explanation.forced_by_kind import ByKinds
from malletrain.allocator.explanation.plan_parts import parts_of, parts_to_proto
from malletrain.allocator.explanation.worth import PartExplainer, PlannedPart, Reason
from malletrain.allocator.problem.allocation_problem import (
    AllocationProblem,
    Formulation,
    NodeKind,
    ObjectiveMetric,
)
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime
from malletrain.allocator.problem.objective import scale_values
from malletrain.allocator.problem.planner import (
    JobCurve,
    PlanInput,
    PlannableJob,
    PlannableNode,
    PlanProblem,
    plan_problem,
)
from malletrain.allocator.problem.pools import PoolTerms, terms_of
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.solvers.choice_table import present_counts
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import allocation_to_proto, problem_from_proto, problem_to_proto
from malletrain.cli.operate.plan import jobs_without_place, part_in_words
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from malletrain.v1 import allocator_pb2
from tests.allocator.problems import problems
from tests.support.builders import plannable

SLOW = settings(deadline=None, max_examples=100)
LIMIT = 60.0


def brute_force(problem: AllocationProblem, index: int = 0, nodes: int | None = None) -> float:
    """The best objective, by trying every combination of counts; of those with a job at a scale, where one is given."""
    per_job = [scale_values(job, replace(problem, max_nodes=None)) for job in problem.jobs]
    best = 0.0 if not per_job else float("-inf")
    for choice in product(*(range(len(scales.sizes)) for scales in per_job)):
        counts = [int(scales.sizes[place]) for scales, place in zip(per_job, choice, strict=True)]
        possible = sum(counts) <= min(len(problem.nodes), problem.max_nodes or 0)
        if possible and (nodes is None or counts[index] == nodes):
            best = max(best, sum(float(scales.values[at]) for scales, at in zip(per_job, choice, strict=True)))
    return best


@SLOW
@given(problem=problems(), most=st.integers(0, 8), formulation=st.sampled_from(list(Formulation)))
def test_a_limit_is_kept_and_the_plan_exact(
    process: SolverProcess, problem: AllocationProblem, most: int, formulation: Formulation
) -> None:
    limited = replace(problem, max_nodes=most)
    answer = solve(limited, formulation, LIMIT, process)
    assert answer.status == "OPTIMAL", answer.fallback_reason
    assert sum(len(entry.nodes) for entry in answer.assignments) <= most
    assert answer.objective == pytest.approx(brute_force(limited), rel=1e-6, abs=1e-6)


@settings(SLOW, max_examples=40)
@given(problem=problems(), most=st.integers(0, 8), with_kinds=st.booleans())
def test_an_explanation_keeps_to_the_limit(
    process: SolverProcess, problem: AllocationProblem, most: int, with_kinds: bool
) -> None:
    # Kinds that suit everybody have HiGHS solve what is asked, and change nothing else.
    kinds = (NodeKind(problem.nodes),) if with_kinds else ()
    limited = replace(problem, max_nodes=most, kinds=kinds)
    answer = solve(limited, process=process)
    part = PlannedPart("", apply_pins(limited, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    explainer = PartExplainer(part, ByKinds(process))
    close = 1e-6 * max(1.0, sum(float(abs(scale_values(job, problem).values).max()) for job in problem.jobs))
    account = explainer.account()
    more = brute_force(replace(limited, nodes=(*problem.nodes, "one more")))
    assert account.one_more_gain == pytest.approx(more - answer.objective, abs=close)
    if problem.nodes:
        fewer = brute_force(replace(limited, max_nodes=min(most, len(problem.nodes) - 1)))
        assert account.one_fewer_loss == pytest.approx(answer.objective - fewer, abs=close)
    for index, job in enumerate(problem.jobs):
        for worth in explainer.job(job.id, all_scales=True).scales:
            forced = brute_force(limited, index, worth.nodes)
            assert worth.possible == (forced > float("-inf"))
            if worth.possible:
                assert worth.loss == pytest.approx(answer.objective - forced, abs=close)


def planned(
    rules: dict[str, PoolTerms], *jobs: PlannableJob, pools: str = "aaabbbb", busy: tuple[str, ...] = ()
) -> PlanProblem:
    """A plan for nodes whose names begin with those of their pools."""
    section = AllocatorSettings(forward_seconds=100.0)
    options = replace(section.planner_options, pools=rules)
    nodes = tuple(
        PlannableNode(f"{pool}{number}", 500.0, f"main/{pool}x4") for number, pool in enumerate(pools, start=1)
    )
    points = tuple(ScalingPoint(count, 100.0 * count**0.8) for count in range(1, 5))
    curves = {job.id: JobCurve(points, 10.0, 5.0) for job in jobs}
    growths = {job.id: 60.0 for job in jobs}
    plan_input = PlanInput(nodes, jobs, frozenset(busy), curves=curves, growth_seconds=growths)
    return plan_problem(plan_input, options)


def job(name: str, *held: str, owner: str = "ada", least: int = 1) -> PlannableJob:
    return plannable(name, *held, low=least, high=max(4, least), owner=owner)


def counts(problem: PlanProblem) -> dict[str, int]:
    found = problem.allocation([solve(part.rest) for part in problem.parts])
    return {entry.job_id: len(entry.nodes) for entry in found.assignments}


def test_the_longest_name_counts() -> None:
    rules = {"main": PoolTerms(max_nodes=1), "main/ax4": PoolTerms(max_nodes=2)}
    found = [terms_of(rules, pool).max_nodes for pool in ("main", "main/ax4", "main/bx4", "main2", "")]
    assert found == [1, 2, 1, None, None]


def test_a_pool_has_its_terms_while_all_nodes_of_the_others_are_busy() -> None:
    rules = {"main/ax4": PoolTerms(max_nodes=2, max_parallel=1)}
    assert counts(planned(rules, job("x"), job("y"), pools="aaab", busy=("b4",))) == {"x": 2, "y": 0}
    assert counts(planned(rules, job("x"), pools="ab", busy=("a1", "b2"))) == {"x": 0}


def test_each_pool_has_its_own_terms() -> None:
    rules = {
        "main/ax4": PoolTerms(ForwardTime(30.0), ObjectiveMetric.SCALING_EFFICIENCY),
        "main/bx4": PoolTerms(max_nodes=2, max_nodes_per_owner=1),
    }
    problem = planned(rules, job("x", "a1"), job("y", "b4"), job("z", "b5", "b6"), job("w", "b7", owner="bob"))
    first, second = (part.whole for part in problem.parts)
    assert (first.forward_seconds, first.objective_metric, first.max_nodes) == (
        30.0,
        ObjectiveMetric.SCALING_EFFICIENCY,
        None,
    )
    assert first.jobs[0].boot_seconds == 15.0  # half of T_fwd at most
    assert (second.forward_seconds, second.objective_metric, second.max_nodes) == (100.0, ObjectiveMetric.THROUGHPUT, 2)
    assert second.owner_limits == {"ada": 1, "bob": 1}
    assert counts(problem) == {"x": 1, "y": 1, "z": 0, "w": 1}  # in 30 s, no growth of x pays


def test_the_only_pool_has_its_terms_too() -> None:
    rules = {"main": PoolTerms(ForwardTime(30.0), ObjectiveMetric.SCALING_EFFICIENCY, 2, 1)}
    problem = planned(rules, job("x", "a1", "a2"), job("y", owner="bob"), job("z", owner="eve"), pools="aaa")
    assert problem.whole.forward_seconds == 30.0
    assert problem.whole.objective_metric is ObjectiveMetric.SCALING_EFFICIENCY
    assert counts(problem) == {"x": 1, "y": 1, "z": 0}


def test_jobs_go_where_the_limit_leaves_room() -> None:
    rules = {"main/bx4": PoolTerms(max_nodes=1)}
    assert counts(planned(rules, job("x", least=2))) == {"x": 3}
    assert counts(planned(rules, job("x", least=4))) == {"x": 0}
    assert counts(planned({"main/bx4": PoolTerms(max_nodes=0)}, job("x"), job("y", "b4"))) == {"x": 3, "y": 0}


def test_a_plan_keeps_them_and_is_explained_by_them() -> None:
    rules = {
        "main/ax4": PoolTerms(objective_metric=ObjectiveMetric.SCALING_EFFICIENCY),
        "main/bx4": PoolTerms(max_nodes=2),
    }
    problem = planned(rules, job("x", "a1"), job("y", "b4"))
    pools = {node: f"main/{node[0]}x4" for node in problem.whole.nodes}
    plan = allocator_pb2.Plan(
        generation=1,
        problem=problem_to_proto(problem.whole),
        allocation=allocation_to_proto(problem.allocation([solve(part.rest) for part in problem.parts])),
        parts=parts_to_proto(problem, pools),
    )
    assert [part.problem.whole for part in parts_of(plan)] == [part.whole for part in problem.parts]
    found = explain_plan(plan)
    told = {part.pool: " ".join(part.sentences) for part in found.parts}
    assert "seconds of one node in the 100 s" in told["main/ax4"]
    assert "jobs may have 2 nodes of it together" in told["main/bx4"]
    about = {entry.job_id: entry for entry in found.jobs}
    assert about["y"].more_reason == allocator_pb2.SCALE_REASON_POOL_LIMIT
    assert "not 3: jobs may have 2 nodes of the pool together" in " ".join(about["y"].sentences)


def test_what_an_operator_has_chosen_for_a_pool_is_in_the_plan_and_in_words() -> None:
    rules = {
        "main/ax4": PoolTerms(objective_metric=ObjectiveMetric.SCALING_EFFICIENCY, max_parallel=1),
        "main/bx4": PoolTerms(max_nodes=2, max_nodes_per_owner=1, max_parallel=1),
    }
    problem = planned(rules, job("x", "a1"), job("y", "b4"), job("z"))
    pools = {node: f"main/{node[0]}x4" for node in problem.whole.nodes}
    whole = problem_to_proto(problem.whole)
    plan = allocator_pb2.Plan(problem=whole, parts=parts_to_proto(problem, pools))
    first, second = (part_in_words(part, whole) for part in plan.parts)
    assert first == "main/ax4: 3 nodes, looks 100 s ahead, by scaling efficiency, places for 1 jobs"
    assert second.endswith(", all jobs together may have 2, those of one owner 1, places for 1 jobs")
    assert jobs_without_place(plan) == ["z"]
    free = planned({}, job("x", "a1"), job("z"))
    unlimited = allocator_pb2.Plan(problem=problem_to_proto(free.whole), parts=parts_to_proto(free, pools))
    assert jobs_without_place(unlimited) == []
    assert "places" not in part_in_words(unlimited.parts[0], unlimited.problem)


def test_the_terms_of_the_only_pool_are_told_too() -> None:
    pools = {"a1": "main/ax4", "a2": "main/ax4", "a3": "main/ax4"}

    def told(most: int) -> tuple[str, list[str]]:
        problem = planned({"main": PoolTerms(max_parallel=most)}, job("x"), job("y"), pools="aaa")
        whole = problem_to_proto(problem.whole)
        plan = allocator_pb2.Plan(problem=whole, parts=parts_to_proto(problem, pools))
        return part_in_words(plan.parts[0], whole), jobs_without_place(plan)

    assert told(1) == ("main/ax4: 3 nodes, looks 100 s ahead, by throughput, places for 1 jobs", ["y"])
    assert told(2) == ("all nodes: 3 nodes, looks 100 s ahead, by throughput, places for 2 jobs", [])


def test_a_plan_of_an_earlier_version_has_the_same_terms_everywhere() -> None:
    problem = planned({}, job("x", "a1"), job("y", "b4"))
    parts = parts_to_proto(problem, {})
    for part in parts:
        part.ClearField("objective_metric")
    allocation = allocation_to_proto(problem.allocation([solve(part.rest) for part in problem.parts]))
    plan = allocator_pb2.Plan(problem=problem_to_proto(problem.whole), allocation=allocation, parts=parts)
    metrics = {part.problem.whole.objective_metric for part in parts_of(plan)}
    assert metrics == {ObjectiveMetric.THROUGHPUT}


def test_pinned_jobs_count() -> None:
    problem = replace(planned({}, job("x", "a1"), job("y"), pools="aaaa").whole, max_nodes=2)
    grown = apply_pins(problem, {"x": ScalePin(2, grow=True, until=1e9)})
    assert (len(grown.pinned["x"]), grown.rest.max_nodes) == (2, 0)
    waits = apply_pins(problem, {"x": ScalePin(3, grow=True, until=1e9)})
    assert (len(waits.pinned["x"]), waits.rest.max_nodes) == (1, 1)


def test_where_nothing_is_found_in_time_the_limit_is_kept() -> None:
    problem = replace(planned({}, job("x", "a1", "a2"), job("y", "a3"), pools="aaaa").whole, max_nodes=2)
    per_job = [scale_values(one, problem) for one in problem.jobs]
    assert present_counts(per_job, problem.capacity) == [2, 0]


def test_a_message_tells_the_limit() -> None:
    problem = planned({}, job("x"), pools="aaa").whole
    for most in (None, 0, 2):
        limited = replace(problem, max_nodes=most)
        assert problem_from_proto(problem_to_proto(limited)) == limited
    with pytest.raises(InvalidInputError) as error:
        solve(replace(problem, max_nodes=-1))
    assert error.value.field == "max_nodes"


def test_what_binds_is_said(process: SolverProcess) -> None:
    problem = replace(planned({}, job("x"), pools="aaa").whole, max_nodes=2)
    answer = solve(problem)
    part = PlannedPart("", apply_pins(problem, {}), {entry.job_id: entry.nodes for entry in answer.assignments})
    account = PartExplainer(part, ByKinds(process)).job("x")
    assert account.more_reason is Reason.POOL_LIMIT
    assert any("jobs may have 2 nodes of the pool together" in line for line in sentences.of_job(account, problem))


@settings(SLOW, max_examples=200)
@given(
    pools=st.text("ab", min_size=1, max_size=7),
    least=st.lists(st.integers(1, 4), max_size=6),
    holds=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 6]), min_size=6, max_size=6),
    most=st.tuples(*[st.one_of(st.none(), st.integers(0, 3))] * 2),
)
def test_no_pool_has_more_jobs_than_places_and_the_plan_of_those_is_exact(
    pools: str, least: list[int], holds: list[int], most: tuple[int | None, int | None]
) -> None:
    names = [f"{pool}{number}" for number, pool in enumerate(pools, start=1)]
    free, jobs = list(names), []
    for number, (fewest, at) in enumerate(zip(least, holds, strict=False)):
        held = [free.pop(at)] if 0 <= at < len(free) else []
        jobs.append(job(f"j{number}", *held, least=fewest))
    places = dict(zip("ab", most, strict=True))
    rules = {f"main/{pool}x4": PoolTerms(max_parallel=count) for pool, count in places.items()}
    problem = planned(rules, *jobs, pools=pools)
    found = problem.allocation([solve(part.rest) for part in problem.parts])
    assert [entry.job_id for entry in found.assignments] == [one.id for one in jobs]
    taking_part = {one.id for part in problem.parts for one in part.whole.jobs}
    exact = sum(brute_force(replace(part.whole, max_nodes=len(part.whole.nodes))) for part in problem.parts)
    assert found.objective == pytest.approx(exact, rel=1e-6, abs=1e-6)
    for pool, limit in places.items():
        running = [entry for entry in found.assignments if any(node[0] == pool for node in entry.nodes)]
        own = [one for one in jobs if any(node[0] == pool for node in one.current_nodes)]
        kept = own if limit is None else own[:limit]
        assert limit is None or len(running) <= limit
        assert taking_part & {one.id for one in own} == {one.id for one in kept}, "holders keep their places"
        if pool in pools and (limit is None or len(own) < limit):
            fitting = [one.id for one in jobs if not one.current_nodes and one.min_nodes <= pools.count(pool)]
            assert not fitting or fitting[0] in taking_part, "the first in line gets a place that is free"


def test_places_go_to_those_with_nodes_and_then_in_line() -> None:
    rules = {"main/ax4": PoolTerms(max_parallel=1), "main/bx4": PoolTerms(max_parallel=2)}
    jobs = [job("huge", least=5), *(job(name) for name in "uvw"), job("x", "a1"), job("y", "b4")]
    found = counts(planned(rules, *jobs))
    assert {name for name, count in found.items() if count} == {"u", "x", "y"}
    only = planned({"main": PoolTerms(max_parallel=1)}, job("x"), job("y", "a1"), job("z", "a2"), pools="aaaa")
    assert counts(only) == {"x": 0, "y": 4, "z": 0}
    assert counts(planned({"main": PoolTerms(max_parallel=0)}, job("x"), job("y", "a1"), pools="aaaa")) == {
        "x": 0,
        "y": 0,
    }


@pytest.mark.parametrize("pools", ["aaabbbb", "aaa"])
def test_a_job_without_a_place_is_told_so(pools: str) -> None:
    rules = {"main": PoolTerms(max_parallel=1)}
    problem = planned(rules, job("x", "a1"), job("y"), job("z"), pools=pools)
    of_pools = {node: f"main/{node[0]}x4" for node in problem.whole.nodes}
    plan = allocator_pb2.Plan(
        generation=1,
        problem=problem_to_proto(problem.whole),
        allocation=allocation_to_proto(problem.allocation([solve(part.rest) for part in problem.parts])),
        parts=parts_to_proto(problem, of_pools),
    )
    assert [part.problem.whole for part in parts_of(plan)] == [part.whole for part in problem.parts]
    assert "z" not in {entry.job_id for entry in explain_plan(plan).jobs}
    with pytest.raises(PreconditionError, match="no pool had a place for it"):
        explain_plan(plan, "z")


def test_settings_say_it() -> None:
    section = AllocatorSettings.model_validate(
        {
            "forward_seconds": 90,
            "forward_share": 0.5,
            "pools": {
                "main": {"forward_policy": "survival", "max_nodes": 4},
                "main/a100x4": {"max_nodes_per_owner": 2, "max_parallel": 3},
            },
        }
    )
    rules = section.planner_options.pools
    assert rules["main"].forward == ForwardTime(90.0, ForwardPolicy.SURVIVAL, 0.5)
    assert (rules["main"].max_nodes, rules["main"].objective_metric) == (4, None)
    assert rules["main/a100x4"] == PoolTerms(max_nodes_per_owner=2, max_parallel=3)


@pytest.mark.parametrize(
    ("pools", "field"),
    [
        ({"main": {"max_nodes": -1}}, "pools.main.max_nodes"),
        ({"main": {"max_parallel": -1}}, "pools.main.max_parallel"),
        ({"main": {"max_nodes_per_owner": 0}}, "pools.main.max_nodes_per_owner"),
        ({"main": {"forward_seconds": 0}}, "pools.main.forward_seconds"),
        ({"main": {"objective_metric": "speed"}}, "pools.main.objective_metric"),
        ({"main": {"objective": "throughput"}}, "pools.main.objective"),
        ({" ": {}}, "pools"),
        ({f"p{number}": {} for number in range(65)}, "pools"),
    ],
)
def test_settings_that_can_not_be_meant_are_refused(pools: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        AllocatorSettings.model_validate({"pools": pools})
    assert {".".join(map(str, one["loc"])) for one in error.value.errors()} == {field}


def test_pools_and_jobs_that_span_them_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="expected nothing where span_pools is set"):
        AllocatorSettings.model_validate({"span_pools": True, "pools": {"main": {"max_nodes": 1}}})
