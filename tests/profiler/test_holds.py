"""The allocator's part: held jobs get what the Profiler asks for, the others what is best on the rest."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.holds import Hold, reserve
from malletrain.allocator.picture import Picture
from malletrain.allocator.planner import Signature, build_problem, describe_change
from malletrain.allocator.problem import AllocationProblem, JobDemand, ScalingPoint
from malletrain.allocator.solving import solve
from malletrain.v1 import profiler_pb2
from tests.allocator.test_planner import OPTIONS, job, jobs, nodes

CURVE = tuple(ScalingPoint(n, 100.0 * n**0.9) for n in range(1, 9))


def problem_of(pool: int, held: dict[str, int], **permitted: tuple[int, ...]) -> AllocationProblem:
    names = tuple(f"n{index}" for index in range(pool))
    free = list(names)
    demands = []
    for name, count in held.items():
        current = tuple(free.pop(0) for _ in range(count))
        demands.append(JobDemand(name, 1, 8, CURVE, 2.0, 1.0, 1.0, current, permitted.get(name, ())))
    return AllocationProblem(names, 120.0, tuple(demands))


def counts(problem: AllocationProblem, holds: dict[str, Hold]) -> dict[str, int]:
    reserved = reserve(problem, holds)
    answer = reserved.complete(solve(reserved.rest))
    named = [node for entry in answer.assignments for node in entry.nodes]
    assert len(named) == len(set(named))
    assert set(named) <= set(problem.nodes)
    for entry, demand in zip(answer.assignments, problem.jobs, strict=True):
        kept = set(entry.nodes) & set(demand.current_nodes)
        assert len(kept) == min(len(entry.nodes), len(demand.current_nodes)), "no migration"
    return {entry.job_id: len(entry.nodes) for entry in answer.assignments}


def test_a_held_job_keeps_its_scale_and_the_rest_is_shared() -> None:
    assert counts(problem_of(8, {"a": 4, "b": 0}), {"a": Hold(2, False, inf)}) == {"a": 2, "b": 6}


def test_a_growth_takes_free_nodes_and_those_of_a_donor() -> None:
    problem = problem_of(8, {"a": 1, "b": 6})
    assert counts(problem, {"a": Hold(5, True, inf), "b": Hold(3, False, inf)}) == {"a": 5, "b": 3}


def test_a_growth_that_does_not_fit_waits() -> None:
    problem = problem_of(8, {"a": 1, "b": 6})
    assert counts(problem, {"a": Hold(5, True, inf), "b": Hold(0, False, inf)}) == {"a": 1, "b": 6}


def test_a_job_that_lost_nodes_is_held_at_what_is_permitted() -> None:
    problem = problem_of(6, {"a": 5, "b": 0}, a=(2, 4, 8))
    assert counts(problem, {"a": Hold(0, False, inf)}) == {"a": 4, "b": 2}


def test_nothing_held_nothing_changed() -> None:
    problem = problem_of(6, {"a": 5, "b": 0})
    assert reserve(problem, {"z": Hold(3, True, inf)}).rest == problem


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 8), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 8), st.booleans())),
    st.integers(0, 5),
)
def test_whatever_is_asked_the_answer_is_a_plan(
    held: dict[str, int], asked: dict[str, tuple[int, bool]], free: int
) -> None:
    problem = problem_of(sum(held.values()) + free, held)
    found = counts(problem, {name: Hold(scale, grow, inf) for name, (scale, grow) in asked.items()})
    for name, (scale, grow) in asked.items():
        if name in found and not grow:
            assert found[name] <= held[name]
        if name in found and scale and scale <= held[name]:
            assert found[name] == scale


def test_a_hold_runs_out_and_a_new_one_makes_a_plan() -> None:
    picture = Picture(caution=1.0)
    picture.see_nodes(nodes("n1", "n2", "n3"))
    picture.see_jobs(jobs(job("a", commanded_nodes=["n1"])))
    points = [
        profiler_pb2.ProfilePoint(nodes=1, rate=10, relative_error=0.1),
        profiler_pb2.ProfilePoint(nodes=4, rate=30, relative_error=0.9),
    ]
    hold = profiler_pb2.Hold(nodes=2, grow=True, until_unix_seconds=50.0)
    profile = profiler_pb2.Profile(job_id="a", points=points, hold=hold)
    picture.see_profiles(profiler_pb2.WatchProfilesResponse(profiles=[profile]))
    during, after = picture.situation(49.0), picture.situation(50.0)
    assert during.holds == {"a": Hold(2, True, 50.0)}
    assert after.holds == {}
    assert picture.next_release(49.0) == 50.0
    assert picture.next_release(50.0) is None
    change = describe_change(Signature.of(after), Signature.of(during))
    assert change == "held for a profile: a at 2"
    problem = build_problem(during, OPTIONS)
    assert [point.rate for point in problem.jobs[0].curve] == [9.0, 9.0], "the lower bound, still never falling"
