"""Whose jobs the page Compare shows, and what it says where the services have forgotten one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import compare_page
from malletrain.dashboard.pages.compare_page import ComparePage
from malletrain.dashboard.pages.job_page import JobPage
from malletrain.dashboard.pages.older_jobs import MAX_JOBS, OlderAnswer, members_of
from malletrain.dashboard.pages.page import SharedData
from malletrain.dashboard.pages.selection import Selection
from malletrain.observer.history import History
from malletrain.observer.job_facts import JobFact
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2

NOW = 1_785_000_000.0
OWN = tuple(JobFact(f"j{number:06d}", name="resnet", owner="ada") for number in (1, 2))
FLOOD = tuple(JobFact(f"j{number:06d}", name="resnet", owner="eve") for number in range(10, 10 + MAX_JOBS))


def history(*jobs: JobFact) -> History:
    return History(began=NOW, now=NOW, jobs={job.id: job for job in jobs})


def ids(*jobs: JobFact) -> list[str]:
    return [job.id for job in jobs]


def test_jobs_of_others_with_the_same_name_push_out_none_of_the_viewers_own() -> None:
    everything, chosen = history(*OWN, *FLOOD), Selection(group="resnet")
    assert ids(*members_of(everything, chosen, "ada")) == [*ids(*OWN), *ids(*FLOOD[2:])]
    assert ids(*members_of(everything, Selection(group="resnet", owner="ada"), "root")) == ids(*OWN)
    assert ids(*members_of(everything, Selection(group="resnet", owner="eve"), "ada")) == ids(*FLOOD)
    array = [JobFact(f"j{number:06d}", name="sweep", owner="ada", array="a000001") for number in (1, 2)]
    named = [JobFact(job.id, name="a000001", owner="eve") for job in FLOOD]
    assert ids(*members_of(history(*array, *named), Selection(group="a000001"), "ada"))[:2] == ids(*array)


class Answers:
    """Stands in for JobManager and Monitor, of which one job fails."""

    def __init__(self, failing: str, code: grpc.StatusCode) -> None:
        self.failing, self.code = failing, code

    async def GetJob(self, request: Any, metadata: Any, timeout: float) -> Any:
        del metadata, timeout
        if request.job_id == self.failing:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self.code, nothing, nothing, f"no job {request.job_id}")
        return job_manager_pb2.GetJobResponse(job=resources_pb2.Job(id=request.job_id))

    async def metrics(self, watcher: Any, viewer: Viewer, job_id: str, *arguments: Any) -> Any:
        del watcher, viewer, job_id, arguments
        point = monitor_pb2.MetricPoint(step=3, value=0.5, least=0.5, most=0.5)
        return (monitor_pb2.MetricHistory(name="loss", points=[point]),)


def page_of(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> ComparePage:
    monkeypatch.setattr(compare_page, "job_manager", lambda _: answers)
    monkeypatch.setattr(compare_page, "metrics_of", answers.metrics)
    times = iter(NOW + 60.0 * minute for minute in range(10))

    async def nothing_older(*_: Any) -> OlderAnswer:
        return OlderAnswer()

    shared = SimpleNamespace(
        watcher=SimpleNamespace(now=lambda: next(times)),
        history=history(*OWN, FLOOD[0], FLOOD[1]),
        older=SimpleNamespace(ask=nothing_older),
    )
    viewer = Viewer("ada", "operator", "id", 2 * NOW, "token")
    return ComparePage(cast(Any, shared), viewer, Selection(group="resnet"), "light")


def test_a_job_that_is_forgotten_is_left_out_and_the_others_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(monkeypatch, Answers(FLOOD[0].id, grpc.StatusCode.NOT_FOUND))
    for _ in range(2):
        asyncio.run(page.ask())
        found = page.regions()
        assert [row.id for row in found.tables["compared"]] == [
            f"compared-{job.id}" for job in (FLOOD[1], OWN[1], OWN[0])
        ]
        assert all(row.cells[5].text == "0.5" for row in found.tables["compared"])
        assert found.texts["notes"] == ""
    assert "resnet (2)" in found.texts["groups"]
    assert "resnet of eve (2)" in found.texts["groups"]
    assert "owner=eve" in found.texts["groups"]


def test_other_errors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(monkeypatch, Answers(FLOOD[0].id, grpc.StatusCode.UNAVAILABLE))
    asyncio.run(page.ask())
    assert "does not answer" in page.regions().texts["notes"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (JobFact("j000002", name="sweep", owner="ada", array="a000001"), ["a000001"]),
        (JobFact("j000002", name="net", owner="ada", fleet="f000001"), ["f000001"]),
        (JobFact("j000002", name="study-7", owner="ada"), ["study"]),
        (JobFact("j000002", name="alone", owner="ada"), []),
    ],
)
def test_the_page_of_a_job_leads_to_its_comparison(job: JobFact, expected: list[str]) -> None:
    shared = SimpleNamespace(history=history(job))
    viewer = Viewer("eve", "user", "id", 2 * NOW, "token")
    page = JobPage(cast(Any, shared), viewer, Selection(job="j000002"), "light")
    found = page.regions().texts["together"]
    assert found.count("<a ") == len(expected)
    for group in expected:
        assert f'href="/compare?group={group}&amp;owner=ada"' in found
        assert f"Compare with the others of {group}" in found


def test_the_form_takes_a_text_and_shows_what_was_typed_as_text() -> None:
    typed = '"><script>alert(1)</script>, j000012'
    known = SimpleNamespace(history=history(*OWN), services={}, revision=0)
    watcher = SimpleNamespace(watched=known, now=lambda: NOW)
    shared = SharedData(cast(Any, watcher), cast(Any, None))
    viewer = Viewer("ada", "user", "id", 2 * NOW, "token")
    found = ComparePage(shared, viewer, Selection(group=typed, metric="loss"), "light").html()
    assert "<script>alert" not in found
    form = found[found.index('<form method="get" action="/compare">') :]
    assert '<input id="choice-group" name="group" type="text" maxlength="256"' in form
    assert 'value="&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;, j000012"' in form
    assert "of any age" in found.lower()
