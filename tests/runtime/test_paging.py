"""All pages of a list are read, each once, from where the request says."""

from __future__ import annotations

from malletrain.runtime.paging import all_pages, all_pages_async
from malletrain.v1 import job_manager_pb2, resources_pb2

Request = job_manager_pb2.ListJobsRequest
Response = job_manager_pb2.ListJobsResponse
NAMES = [f"j{number}" for number in range(7)]


def page(request: Request, timeout: float) -> Response:
    """Three jobs at a time."""
    assert timeout == 5.0
    first = int(request.page_token or 0)
    following = str(first + 3) if first + 3 < len(NAMES) else ""
    jobs = [resources_pb2.Job(id=name) for name in NAMES[first : first + 3]]
    return Response(jobs=jobs, next_page_token=following)


async def page_async(request: Request, timeout: float) -> Response:
    return page(request, timeout)


def test_all_pages() -> None:
    found = [job.id for part in all_pages(page, Request(), timeout=5.0) for job in part.jobs]
    assert found == NAMES
    assert [len(part.jobs) for part in all_pages(page, Request(page_token="3"), timeout=5.0)] == [3, 1]


async def test_all_pages_on_asyncio() -> None:
    assert [len(part.jobs) async for part in all_pages_async(page_async, Request(), timeout=5.0)] == [3, 3, 1]
