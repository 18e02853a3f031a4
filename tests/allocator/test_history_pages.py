"""Pages of the Allocator's past."""

from __future__ import annotations

import pytest

from malletrain.allocator.history import history_pages
from malletrain.allocator.history.history_pages import believed_page, idle_page
from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.allocator.history.plan_store import PlanStore
from malletrain.cli.journal.reading import idle_row
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2, resources_pb2
from tests.support.postgresql import Locate


def rows(count: int) -> list[IdleRow]:
    start = IdleRow(0.0, IdleRowKind.START, {"n1": -5.0, "n2": 0.0})
    return [start, *(IdleRow(float(at), IdleRowKind.CHANGE, {"n1": float(at)}, ("n2",)) for at in range(1, count))]


def all_changes(store: IdleStore, size: int) -> tuple[list[IdleRow], int]:
    """What all pages have together, and how many there are."""
    found, token, pages = list[IdleRow](), "", 0
    while True:
        page = idle_page(store, allocator_pb2.ListIdleChangesRequest(page_size=size, page_token=token))
        found, pages = [*found, *map(idle_row, page.changes)], pages + 1
        if not (token := page.next_page_token):
            return found, pages


@pytest.mark.parametrize(("size", "pages"), [(0, 1), (1, 5), (2, 3), (5, 1), (1000, 1)])
def test_all_pages_together_are_all_rows(locate: Locate, size: int, pages: int) -> None:
    store = IdleStore(open_database(locate("allocator")), 100)
    store.add(rows(5))
    assert all_changes(store, size) == (rows(5), pages)


def test_pages_end_where_rows_are_large(locate: Locate, monkeypatch: pytest.MonkeyPatch) -> None:
    store = IdleStore(open_database(locate("allocator")), 100)
    store.add(rows(5))
    monkeypatch.setattr(history_pages, "MAX_IDLE_CHARACTERS", 30)
    found, pages = all_changes(store, 1000)
    assert found == rows(5)
    assert pages >= 3


def test_the_newest_plan_with_a_job_says_what_was_believed_of_it(locate: Locate) -> None:
    store = PlanStore(open_database(locate("allocator")), plans_kept=100)
    for generation in range(1, 8):
        curve = [resources_pb2.ScalingPoint(nodes=1, rate=float(generation))]
        names = ["j1", "j2"] if generation < 4 else ["j2"]
        jobs = [allocator_pb2.JobDemand(id=name, curve=curve, scale_up_seconds=2.0) for name in names]
        problem = allocator_pb2.AllocationProblem(jobs=jobs, nodes=["n1"])
        parts = [allocator_pb2.PlanPart(pool=f"p{generation}")]
        store.add(allocator_pb2.Plan(generation=generation, problem=problem, parts=parts))
    token, believed, pools = "", dict[str, float](), list[list[str]]()
    while True:
        page = believed_page(store, allocator_pb2.ListBelievedJobsRequest(page_size=3, page_token=token))
        for job in page.jobs:
            assert job.scale_up_seconds == 2.0
            believed.setdefault(job.job_id, job.curve[0].rate)
        pools.append(list(page.pools))
        if not (token := page.next_page_token):
            break
    assert believed == {"j2": 7.0, "j1": 3.0}
    assert pools == [["p7"], ["p4"], ["p1"]]


@pytest.mark.parametrize(("size", "token"), [(-1, ""), (1001, ""), (0, "x"), (0, "-1"), (0, "1" * 19)])
def test_pages_that_no_page_has_named_are_refused(locate: Locate, size: int, token: str) -> None:
    engine = open_database(locate("allocator"))
    with pytest.raises(InvalidInputError):
        idle_page(IdleStore(engine, 1), allocator_pb2.ListIdleChangesRequest(page_size=size, page_token=token))
    with pytest.raises(InvalidInputError):
        believed_page(PlanStore(engine, 1), allocator_pb2.ListBelievedJobsRequest(page_size=size, page_token=token))
