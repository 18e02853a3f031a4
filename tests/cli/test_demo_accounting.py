"""Where the node-seconds that a demo is offered went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.cli.demo.recorder import JobChange, NodeChange, RunHistory, idle_intervals, node_seconds
from malletrain.cli.demo.summary import divide_offer, most_usable

END = 100.0
NAMES = ("n1", "n2", "n3", "n4")


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def joins(time: float, text: str) -> NodeChange:
    return NodeChange(time, names(text), frozenset())


def job(time: float, state: str, trains: str = "", scales: tuple[int, ...] = (1, 2, 3, 4), **nodes: str) -> JobChange:
    sets = {name: names(text) for name, text in nodes.items()}
    return JobChange(time, "j1", state, names(trains), scales=scales, **sets)


def lost(history: RunHistory) -> dict[str, float]:
    return {use.value: seconds for use, seconds in divide_offer(history, END).items() if seconds}


def test_a_run_from_its_first_node_to_its_last_job() -> None:
    history = RunHistory(
        nodes=[joins(0.0, "n1"), joins(30.0, "n2")],
        jobs=[
            job(10.0, "WAITING"),
            job(12.0, "STARTING", wanted="n1", held="n1"),
            job(15.0, "RUNNING", "n1", wanted="n1", held="n1"),
            job(31.0, "RESCALING", "n1", wanted="n1 n2", held="n1 n2"),
            job(35.0, "RUNNING", "n1 n2", wanted="n1 n2", held="n1 n2"),
            job(90.0, "COMPLETED"),
        ],
        plans=[12.0, 31.0],
    )
    assert lost(history) == {
        "no_job": 10.0 + 2 * 10.0,
        "awaiting_plan": 2.0 + 1.0,
        "starting": 3.0,
        "joining": 4.0,
        "training": 75.0 + 55.0,
    }


def test_a_node_that_is_given_back_is_leaving_until_its_workers_have_ended() -> None:
    history = RunHistory(
        nodes=[joins(0.0, "n1 n2")],
        jobs=[
            job(0.0, "RUNNING", "n1 n2", wanted="n1 n2", held="n1 n2"),
            job(50.0, "RUNNING", "n1", wanted="n1", held="n1 n2"),
            job(60.0, "STOPPING", wanted="", held="n1"),
            job(70.0, "WAITING"),
        ],
        plans=[0.0, 49.0],
    )
    assert lost(history) == {"training": 2 * 50.0 + 10.0, "leaving": 10.0 + 10.0, "awaiting_plan": 40.0 + 30.0}


def test_a_node_that_is_promised_to_another_job_is_leaving_first() -> None:
    def promised(job_id: str) -> JobChange:
        return JobChange(0.0, job_id, "WAITING", frozenset(), names("n1"), frozenset(), (1,))

    def stopping(job_id: str) -> JobChange:
        return JobChange(0.0, job_id, "STOPPING", frozenset(), frozenset(), names("n1"), (1,))

    for changes in ([promised("a"), stopping("b")], [stopping("a"), promised("b")]):
        assert lost(RunHistory([joins(0.0, "n1")], changes, [0.0])) == {"leaving": END}


def test_a_plan_that_leaves_a_node_free_is_told_from_one_that_has_not_been_made() -> None:
    history = RunHistory(
        nodes=[joins(0.0, "n1 n2")],
        jobs=[job(0.0, "RUNNING", "n1", wanted="n1", held="n1")],
        plans=[5.0],
    )
    assert lost(history) == {"training": 100.0, "awaiting_plan": 5.0, "left_free": 95.0}


def test_nodes_beyond_what_jobs_can_use_are_counted_apart() -> None:
    history = RunHistory(
        nodes=[joins(0.0, "n1 n2 n3")],
        jobs=[job(0.0, "RUNNING", "n1 n2", scales=(2, 4), wanted="n1 n2", held="n1 n2")],
        plans=[0.0],
    )
    assert lost(history) == {"training": 200.0, "too_many": 100.0}


def test_time_on_a_node_after_its_leave_is_neither_offered_nor_used() -> None:
    history = RunHistory(
        nodes=[joins(0.0, "n1"), NodeChange(40.0, frozenset(), names("n1"))],
        jobs=[job(0.0, "RUNNING", "n1", wanted="n1", held="n1"), job(42.0, "WAITING")],
    )
    assert lost(history) == {"training": 40.0}


@pytest.mark.parametrize(
    ("nodes", "scales", "expected"),
    [(8, [(1, 2, 3, 4)], 4), (5, [(2, 4)], 4), (7, [(2, 4), (1, 2, 3)], 7), (1, [(2, 4)], 0), (9, [], 0)],
)
def test_most_nodes_that_jobs_can_use_together(nodes: int, scales: list[tuple[int, ...]], expected: int) -> None:
    jobs = [job(0.0, "WAITING", scales=permitted) for permitted in scales]
    assert most_usable(nodes, jobs) == expected


def _changes() -> st.SearchStrategy[list[object]]:
    some = st.frozensets(st.sampled_from(NAMES))
    times = st.floats(0, END)
    states = st.sampled_from(["WAITING", "STARTING", "RUNNING", "RESCALING", "STOPPING", "COMPLETED"])
    nodes = st.builds(lambda time, joined, left: NodeChange(time, joined, left - joined), times, some, some)
    jobs = st.builds(
        JobChange, times, st.sampled_from(["j1", "j2"]), states, some, some, some, st.sampled_from([(1, 2), (2, 4)])
    )
    return st.lists(st.one_of(nodes, jobs, times), max_size=25)


@given(_changes())
def test_the_parts_add_up_to_the_offer(changes: list[object]) -> None:
    history = RunHistory()
    for change in changes:
        if isinstance(change, NodeChange):
            history.nodes.append(change)
        elif isinstance(change, JobChange):
            history.jobs.append(change)
        elif isinstance(change, float):
            history.plans.append(change)
    history.nodes.sort(key=lambda change: change.time)
    history.jobs.sort(key=lambda change: change.time)
    parts = divide_offer(history, END)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(node_seconds(idle_intervals(history.nodes, END)))
