from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soaking.workload import IdleNodes, plan_arrivals, sinfo_text, taken_nodes
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.sources.schedulers.slurm_text import parse_states


@given(st.integers(0, 2**32), st.integers(1, 100), st.floats(10.0, 600.0))
def test_jobs_arrive_in_order_while_there_is_time(seed: int, jobs: int, seconds: float) -> None:
    found = plan_arrivals(seed, jobs, seconds)
    assert found == plan_arrivals(seed, jobs, seconds)
    assert [arrival.number for arrival in found] == list(range(1, jobs + 1))
    assert [arrival.at_s for arrival in found] == sorted(arrival.at_s for arrival in found)
    assert found[-1].at_s <= 0.751 * seconds
    assert len({arrival.name for arrival in found}) == jobs
    assert any(arrival.real for arrival in found)
    assert jobs <= 2 or any(not arrival.real for arrival in found)


def test_nodes_are_idle_when_the_trace_says_so() -> None:
    trace = Trace(
        (Fragment("a", -5.0, 20.0), Fragment("b", 10.0, 40.0), Fragment("a", 30.0, 50.0)), ("a", "b", "c"), 50.0
    )
    idle = IdleNodes(trace, speed=10.0)
    assert idle.moments == [1.0, 2.0, 3.0, 4.0]
    found = ["".join(sorted(idle.at(second))) for second in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert found == ["a", "ab", "b", "ab", "a"]
    assert idle.while_draining() == {"a", "b", "c"}


@given(st.sets(st.sampled_from("abcdefgh")))
def test_the_source_reads_what_sinfo_prints(idle: set[str]) -> None:
    found = parse_states(sinfo_text("abcdefgh", frozenset(idle)))
    assert (found.idle, found.known) == (idle, set("abcdefgh"))


@given(st.integers(0, 2**32))
def test_at_most_half_of_the_nodes_with_agents_are_taken(seed: int) -> None:
    names, taken = ["p1", "p2", "p3", "p4"], set[str]()
    changes = taken_nodes(seed, names, 600.0)
    assert [at for at, _ in changes] == sorted(at for at, _ in changes)
    for _, name in changes:
        taken ^= {name}
        assert len(taken) <= 2
    assert len(changes) > 10
