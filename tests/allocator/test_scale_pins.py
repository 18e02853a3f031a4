"""Pinned jobs get the scale that the Profiler asks for; the others get what is best on the remaining nodes."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
from malletrain.allocator.problem.scale_pins import ScalePin, apply_pins
from malletrain.allocator.solvers.solving import solve
from malletrain.model.scaling import ScalingPoint

CURVE = tuple(ScalingPoint(n, 100.0 * n**0.9) for n in range(1, 9))


def problem_of(pool: int, held: dict[str, int], **permitted: tuple[int, ...]) -> AllocationProblem:
    names = tuple(f"n{index}" for index in range(pool))
    free = list(names)
    demands = []
    for name, count in held.items():
        current = tuple(free.pop(0) for _ in range(count))
        demands.append(JobDemand(name, 1, 8, CURVE, 2.0, 1.0, current, permitted_nodes=permitted.get(name, ())))
    return AllocationProblem(names, 120.0, tuple(demands))


def counts(problem: AllocationProblem, pins: dict[str, ScalePin]) -> dict[str, int]:
    pinned = apply_pins(problem, pins)
    answer = pinned.complete(solve(pinned.rest))
    named = [node for entry in answer.assignments for node in entry.nodes]
    assert len(named) == len(set(named))
    assert set(named) <= set(problem.nodes)
    for entry, demand in zip(answer.assignments, problem.jobs, strict=True):
        kept = set(entry.nodes) & set(demand.current_nodes)
        assert len(kept) == min(len(entry.nodes), len(demand.current_nodes)), "no migration"
    return {entry.job_id: len(entry.nodes) for entry in answer.assignments}


def test_a_pinned_job_gets_its_scale_and_the_rest_is_shared() -> None:
    assert counts(problem_of(8, {"a": 4, "b": 0}), {"a": ScalePin(2, False, inf)}) == {"a": 2, "b": 6}


def test_a_growth_takes_free_nodes_and_those_of_a_donor() -> None:
    problem = problem_of(8, {"a": 1, "b": 6})
    assert counts(problem, {"a": ScalePin(5, True, inf), "b": ScalePin(3, False, inf)}) == {"a": 5, "b": 3}


def test_a_growth_that_does_not_fit_waits() -> None:
    problem = problem_of(8, {"a": 1, "b": 6})
    assert counts(problem, {"a": ScalePin(5, True, inf), "b": ScalePin(0, False, inf)}) == {"a": 1, "b": 6}


def test_a_job_that_lost_nodes_is_pinned_at_a_permitted_scale() -> None:
    problem = problem_of(6, {"a": 5, "b": 0}, a=(2, 4, 8))
    assert counts(problem, {"a": ScalePin(0, False, inf)}) == {"a": 4, "b": 2}


def test_without_pins_nothing_changes() -> None:
    problem = problem_of(6, {"a": 5, "b": 0})
    assert apply_pins(problem, {"z": ScalePin(3, True, inf)}).rest == problem


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 8), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 8), st.booleans())),
    st.integers(0, 5),
)
def test_whatever_is_pinned_the_solution_is_a_plan(
    held: dict[str, int], asked: dict[str, tuple[int, bool]], free: int
) -> None:
    problem = problem_of(sum(held.values()) + free, held)
    found = counts(problem, {name: ScalePin(scale, grow, inf) for name, (scale, grow) in asked.items()})
    for name, (scale, grow) in asked.items():
        if name in found and not grow:
            assert found[name] <= held[name]
        if name in found and scale and scale <= held[name]:
            assert found[name] == scale
