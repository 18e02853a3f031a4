"""Which workers hold up the others, and which nodes are called slow for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc
import grpc.aio
import pytest

from malletrain.monitor.stragglers.judging import WorkerTime, is_slower, medians_of_others
from malletrain.monitor.stragglers.slow_nodes import JobPlace, SlowNode, StragglerBook, StragglerOptions
from malletrain.v1 import monitor_pb2
from tests.monitor.running import running_monitor

NODES = ("n0", "n1", "n2", "n3")


def times(own_ms: Mapping[int, float], step_ms: float = 50.0, nodes: tuple[str, ...] = NODES) -> list[WorkerTime]:
    return [WorkerTime(rank, nodes[rank], 20, own / 1e3, step_ms / 1e3) for rank, own in own_ms.items()]


EVEN = {0: 10.0, 1: 10.5, 2: 9.8, 3: 10.2}
THIRD_SLOW = {**EVEN, 2: 30.0}


def book_of(*jobs: JobPlace, options: StragglerOptions | None = None) -> StragglerBook:
    book = StragglerBook(options or StragglerOptions())
    book.place(jobs, all_jobs=True)
    return book


def place(job_id: str, owner: str, nodes: tuple[str, ...] = NODES) -> JobPlace:
    return JobPlace(job_id, owner, frozenset(nodes))


def tell(book: StragglerBook, job_id: str, own_ms: Mapping[int, float], often: int = 3, now: float = 0.0) -> None:
    for number in range(often):
        book.take_times(job_id, times(own_ms), now + 10.0 * number)


def test_each_worker_is_compared_with_the_median_of_all_others() -> None:
    assert medians_of_others({0: 1.0, 1: 2.0, 2: 9.0}) == {0: 5.5, 1: 5.0, 2: 1.5}
    assert medians_of_others({0: 4.0, 1: 4.0, 2: 4.0, 3: 1.0}) == {0: 4.0, 1: 4.0, 2: 4.0, 3: 4.0}


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "step_ms", "slower"),
    [
        (14.0, 10.0, 50.0, True),
        (12.0, 10.0, 50.0, False),  # by no more than the share
        (1.4, 1.0, 50.0, False),  # nothing that the job would notice
        (10.0, 14.0, 50.0, False),
    ],
)
def test_slower_is_who_takes_a_share_longer_and_costs_the_job_something(
    own_ms: float, others_ms: float, step_ms: float, slower: bool
) -> None:
    time = WorkerTime(1, "n1", 20, own_ms / 1e3, step_ms / 1e3)
    assert is_slower(time, others_ms / 1e3, 0.25) is slower


def test_a_worker_is_slow_after_three_messages_in_a_row_and_well_again_after_three() -> None:
    book = book_of(place("j1", "ada"))
    tell(book, "j1", THIRD_SLOW, often=2)
    assert book.slow_workers("j1") == []
    (change,) = book.take_times("j1", times(THIRD_SLOW), 20.0)
    assert (change.slow, change.worker.rank, change.worker.node) == (True, 2, "n2")
    assert change.worker.share == pytest.approx(30.0 / 10.2 - 1)
    tell(book, "j1", EVEN, often=2)
    assert [worker.rank for worker in book.slow_workers("j1")] == [2], "not yet sure"
    (change,) = book.take_times("j1", times(EVEN), 60.0)
    assert (change.slow, change.worker.rank, book.slow_workers("j1")) == (False, 2, [])


def test_one_slow_message_among_others_says_nothing() -> None:
    book = book_of(place("j1", "ada"))
    for _ in range(10):
        tell(book, "j1", THIRD_SLOW, often=2)
        tell(book, "j1", EVEN, often=2)
    assert book.slow_workers("j1") == []


def test_of_two_workers_nobody_says_which_is_slow() -> None:
    book = book_of(place("j1", "ada", NODES[:2]))
    tell(book, "j1", {0: 10.0, 1: 100.0}, often=9)
    assert (book.slow_workers("j1"), book.count_measured("j1", 90.0)) == ([], 2)


def test_workers_on_other_nodes_than_the_jobs_and_those_of_unknown_jobs_are_left_out() -> None:
    book = book_of(place("j1", "ada", NODES[:3]))
    for _ in range(4):
        assert book.take_times("j2", times(THIRD_SLOW), 0.0) == []
        book.take_times("j1", times({0: 10.0, 1: 10.0, 3: 500.0}), 0.0)
    assert (book.slow_workers("j1"), book.slow_nodes(0.0), book.count_measured("j1", 0.0)) == ([], [], 2)


def test_a_node_is_called_slow_by_each_owner_once() -> None:
    book = book_of(place("j1", "ada"), place("j2", "ada"), place("j3", "bob"))
    tell(book, "j1", THIRD_SLOW)
    tell(book, "j2", {**EVEN, 2: 50.0})
    (node,) = book.slow_nodes(20.0)
    assert (node.name, node.owners, node.job_id) == ("n2", 1, "j2")
    tell(book, "j3", THIRD_SLOW)
    assert [(node.name, node.owners) for node in book.slow_nodes(20.0)] == [("n2", 2)]
    tell(book, "j3", EVEN, often=6)
    assert [(node.name, node.owners) for node in book.slow_nodes(20.0)] == [("n2", 1)], "bob takes it back"


def test_that_rank_0_does_more_is_not_held_against_its_node() -> None:
    book = book_of(place("j1", "ada"))
    tell(book, "j1", {**EVEN, 0: 40.0})
    assert [worker.rank for worker in book.slow_workers("j1")] == [0]
    assert book.slow_nodes(20.0) == []


def test_what_was_said_long_ago_does_not_count() -> None:
    book = book_of(place("j1", "ada"), options=StragglerOptions(remember_seconds=100.0))
    tell(book, "j1", THIRD_SLOW)
    assert [node.name for node in book.slow_nodes(120.0)] == ["n2"]
    assert book.slow_nodes(121.0) == []


def test_gpus_of_members_of_fleets_count_for_their_nodes() -> None:
    gpus = ("n0#0", "n0#1", "n1#0", "n1#1")
    book = book_of(place("j1", "ada", gpus))
    for _ in range(3):
        book.take_times("j1", times(THIRD_SLOW, nodes=gpus), 0.0)
    assert book.slow_nodes(0.0) == [SlowNode("n1", pytest.approx(30.0 / 10.2 - 1), 1, "j1")]


def test_at_another_scale_and_after_its_end_a_job_says_nothing_of_its_workers() -> None:
    book = book_of(place("j1", "ada"), place("j2", "ada"))
    tell(book, "j1", THIRD_SLOW)
    tell(book, "j2", THIRD_SLOW)
    assert book.all_slow_workers() == 2
    book.place([place("j1", "ada", NODES[:3])], all_jobs=False)
    assert (book.slow_workers("j1"), book.all_slow_workers()) == ([], 1)
    book.place([], all_jobs=True)
    assert (book.slow_workers("j2"), book.count_measured("j2", 0.0)) == ([], 0)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"rank": 4096}, "worker_times[0].rank"),
        ({"node": ""}, "worker_times[0].node"),
        ({"steps": 0}, "worker_times[0].steps"),
        ({"step_seconds": float("nan")}, "worker_times[0].step_seconds"),
        ({"own_seconds": float("inf")}, "worker_times[0].own_seconds"),
        ({"own_seconds": 2.0}, "worker_times[0].own_seconds"),
    ],
)
async def test_a_message_with_a_figure_out_of_range_is_refused(
    tmp_path: Path, wrong: dict[str, int | float | str], field: str
) -> None:
    good = {"rank": 0, "node": "n1", "steps": 20, "own_seconds": 0.5, "step_seconds": 1.0}
    request = monitor_pb2.ReportRequest(job_id="j1", reporter_id="r1", slots_per_node=1)
    for name, value in (good | wrong).items():
        if not request.worker_times:
            request.worker_times.add()
        setattr(request.worker_times[0], name, value)
    async with running_monitor(tmp_path) as monitor:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in monitor.stub.Report(iter([request]), timeout=30):
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in str(caught.value.details())
