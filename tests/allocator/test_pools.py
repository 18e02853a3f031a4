from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem, Assignment, JobDemand
from malletrain.allocator.problem.forward_time import ForwardPolicy, ForwardTime
from malletrain.allocator.problem.pools import join, split
from malletrain.allocator.solvers.solving import solve
from tests.support.builders import demand

SURVIVAL = ForwardTime(120.0, ForwardPolicy.SURVIVAL, share=0.5, least=10.0, most=400.0)


def problem(nodes: str, *jobs: JobDemand, stays: dict[str, float] | None = None) -> AllocationProblem:
    return AllocationProblem(tuple(nodes.split()), 120.0, jobs, expected_stay_seconds=stays or {})


def pools(nodes: tuple[str, ...]) -> dict[str, str]:
    return {node: node[0] for node in nodes}


def test_the_horizon_is_fixed_or_a_share_of_the_mean_stay() -> None:
    assert ForwardTime(120.0).of([1.0, 2.0]) == 120.0
    assert SURVIVAL.of([100.0, 300.0, 0.0]) == 100.0
    assert SURVIVAL.of([]) == SURVIVAL.of([0.0]) == 120.0
    assert SURVIVAL.of([1.0]) == 10.0
    assert SURVIVAL.of([5000.0]) == 400.0


def test_one_pool_is_the_problem_itself() -> None:
    whole = problem("a1 a2", demand("x"))
    assert split(whole, {}, SURVIVAL) == (whole,)
    assert split(whole, pools(whole.nodes), SURVIVAL) == (whole,)


def test_a_job_stays_in_its_pool_and_others_go_where_there_is_room() -> None:
    whole = problem("a1 a2 b1 b2 b3", demand("x", "a1"), demand("y"), demand("z"), demand("big", low=3))
    first, second = split(whole, pools(whole.nodes), ForwardTime(120.0))
    assert (first.nodes, second.nodes) == (("a1", "a2"), ("b1", "b2", "b3"))
    assert [entry.id for entry in first.jobs] == ["x"]
    # y and z see three nodes in the other pool; the big one fits nowhere else.
    assert [entry.id for entry in second.jobs] == ["y", "z", "big"]


def test_a_job_that_has_come_to_span_pools_gives_up_the_smaller_part() -> None:
    whole = problem("a1 b1 b2", demand("x", "a1", "b1", "b2"))
    first, second = split(whole, pools(whole.nodes), ForwardTime(120.0))
    assert first.jobs == ()
    assert second.jobs[0].current_nodes == ("b1", "b2")


def test_each_pool_has_its_own_horizon() -> None:
    whole = problem("a1 b1", demand("x"), stays={"a1": 100.0, "b1": 600.0})
    assert [part.forward_seconds for part in split(whole, pools(whole.nodes), SURVIVAL)] == [50.0, 300.0]


def test_answers_are_joined_in_the_order_of_jobs() -> None:
    whole = problem("a1 b1", demand("x"), demand("y"))
    answers = [
        Allocation(2.0, "OPTIMAL", "dp", 0.1, (Assignment("y", ("b1",)),)),
        Allocation(1.0, "FEASIBLE", "highs-counts", 0.2, (Assignment("x", ("a1",)),), "time limit"),
    ]
    joined = join(whole, answers)
    assert [entry.job_id for entry in joined.assignments] == ["x", "y"]
    assert (joined.objective, joined.status, joined.solver) == (3.0, "FEASIBLE", "dp+highs-counts")
    assert joined.fallback_reason == "time limit"


@given(data=st.data())
def test_no_job_spans_pools_and_no_node_is_given_twice(data: st.DataObject) -> None:
    nodes = [f"{pool}{index}" for pool in "abc" for index in range(data.draw(st.integers(0, 5)))]
    count = data.draw(st.integers(0, 4))
    free = list(nodes)
    jobs = []
    for index in range(count):
        held = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=3)) if free else []
        free = [node for node in free if node not in held]
        jobs.append(demand(f"j{index}", *held, low=data.draw(st.integers(1, 3))))
    whole = problem(" ".join(nodes), *jobs)
    parts = split(whole, pools(whole.nodes), ForwardTime(120.0))
    joined = join(whole, [solve(part) for part in parts])
    given_out = [node for entry in joined.assignments for node in entry.nodes]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(nodes)
    assert [entry.job_id for entry in joined.assignments] == [entry.id for entry in jobs]
    assert all(len({node[0] for node in entry.nodes}) <= 1 for entry in joined.assignments)
