"""Jobs of any age on the page Compare: what is asked for, within which limits; on live services, for two users."""

from __future__ import annotations

import asyncio
import csv
import io
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.csv_text import as_csv
from malletrain.dashboard.identities import Viewer, Viewers
from malletrain.dashboard.pages import older_jobs
from malletrain.dashboard.pages.compare_page import ComparePage, compared_columns
from malletrain.dashboard.pages.older_jobs import MAX_JOBS, MAX_WORDS, OlderAnswer, OlderJobs, is_chosen, words_of
from malletrain.dashboard.pages.page import SharedData
from malletrain.dashboard.pages.selection import Selection
from malletrain.observer.history import KEPT_S
from malletrain.observer.job_facts import JobFact
from malletrain.observer.watching import Watcher
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.clock import SystemClock
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import resources_pb2
from tests.dashboard.browsing import SECONDS, SETTINGS
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

NOW = 1_785_000_000.0
SCRIPT = str(Path(__file__).parents[1] / "system" / "scripts" / "falling_loss.py")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("resnet", ("resnet",)),
        ("my resnet", ("my resnet",)),
        ("resnet, study ,", ("resnet", "study")),
        ("j000012 j000019", ("j000012", "j000019")),
        ("j000012,a000019", ("j000012", "a000019")),
        ("j000012 resnet", ("j000012 resnet",)),
        ("j000012, resnet", ("j000012", "resnet")),
        (" , ", ()),
        ("", ()),
    ],
)
def test_a_group_is_made_of_identifiers_or_names(group: str, words: Sequence[str]) -> None:
    assert words_of(group) == words


def test_a_group_has_a_most_of_words() -> None:
    assert len(words_of(" ".join(f"j{number:06d}" for number in range(1, 40)))) == MAX_WORDS


def test_who_is_chosen() -> None:
    job = JobFact("j000012", name="a, b", owner="ada", array="a000012")
    for group in ("j000012", "a, b", "a000012", "j000001 j000012", "x, a000012"):
        assert is_chosen(job, Selection(group=group)), group
    for group in ("a", "b", "j000013", "a000013", ""):
        assert not is_chosen(job, Selection(group=group)), group
    assert not is_chosen(job, Selection(group="j000012", owner="eve"))


@dataclass
class Asked:
    """Stands in for JobManager: so many pages, each with these jobs."""

    pages: int
    jobs: Sequence[resources_pb2.Job] = ()
    requests: list[tuple[Any, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def ListJobs(self, request: pb.ListJobsRequest, metadata: Any, timeout: float) -> pb.ListJobsResponse:
        del timeout
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        copy = pb.ListJobsRequest()
        copy.CopyFrom(request)
        self.requests.append((copy, metadata))
        place = int(request.page_token or 0) + 1
        return pb.ListJobsResponse(jobs=self.jobs, next_page_token=str(place) if place < self.pages else "")

    async def GetJob(self, request: pb.GetJobRequest, metadata: Any, timeout: float) -> pb.GetJobResponse:
        del timeout
        self.requests.append((request, metadata))
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, nothing, nothing, "no such job")


class Times:
    """Stands in for a watcher, of which the clock alone is used."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time


def job(number: int, name: str = "resnet", owner: str = "eve") -> resources_pb2.Job:
    return resources_pb2.Job(id=f"j{number:06d}", owner=owner, spec=resources_pb2.JobSpec(name=name))


def viewer(user: str) -> Viewer:
    return Viewer(user, "user", f"id of {user}", 2 * NOW, f"token of {user}")


def older_of(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> tuple[OlderJobs, Times]:
    monkeypatch.setattr(older_jobs, "job_manager", lambda _: asked)
    times = Times()
    return OlderJobs(cast(Any, times)), times


def test_a_search_ends_after_some_pages_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(pages=1000)
    older, _ = older_of(monkeypatch, asked)
    answer = asyncio.run(older.ask(viewer("ada"), Selection(group="resnet, study")))
    assert answer == OlderAnswer((), whole=False)
    assert len(asked.requests) == 20
    assert {request.owner for request, _ in asked.requests} == {"ada"}
    assert {metadata for _, metadata in asked.requests} == {(("authorization", "Bearer token of ada"),)}
    assert all(request.newest_first and request.page_size == MAX_JOBS for request, _ in asked.requests)


def test_jobs_of_others_are_asked_for_where_one_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(1, [job(1), job(2, "other")])
    older, _ = older_of(monkeypatch, asked)
    assert [found.id for found in asyncio.run(older.ask(viewer("ada"), Selection(group="resnet"))).jobs] == ["j000001"]
    assert [request.owner for request, _ in asked.requests] == ["ada"]  # the stand-in answers all to everybody
    asked.jobs = ()
    assert asyncio.run(older.ask(viewer("bob"), Selection(group="resnet"))) == OlderAnswer()
    assert [request.owner for request, _ in asked.requests][1:] == ["bob", ""]


def test_an_array_is_looked_for_where_its_jobs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(100_000)
    older, _ = older_of(monkeypatch, asked)
    assert asyncio.run(older.ask(viewer("ada"), Selection(group="a000012 j000900"))) == OlderAnswer()
    (listing, _), (one, _) = asked.requests
    assert (listing.group, listing.page_token, listing.newest_first) == ("a000012", "1012", True)
    assert one.job_id == "j000900"


def test_an_answer_is_kept_for_a_minute_for_its_viewer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(1, [job(1)])
    older, times = older_of(monkeypatch, asked)
    ada, eve, chosen = viewer("ada"), viewer("eve"), Selection(group="resnet")
    for who, at, requests in ((ada, 0.0, 1), (ada, 59.0, 1), (eve, 59.0, 2), (ada, 61.0, 3)):
        times.time = NOW + at
        assert len(asyncio.run(older.ask(who, chosen)).jobs) == 1
        assert len(asked.requests) == requests


def test_a_user_makes_one_search_at_a_time_and_all_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(users: Sequence[str]) -> int:
        asked = Asked(3)
        older, _ = older_of(monkeypatch, asked)

        async def all_ask() -> None:
            await asyncio.gather(
                *(older.ask(viewer(user), Selection(group=f"name {place}")) for place, user in enumerate(users))
            )

        asyncio.run(all_ask())
        return asked.most_at_once

    assert most(["ada"] * 6) == 1
    assert most(["ada", "bob", "eve", "ian", "joe", "kim", "lea"]) == 4


class DaysLater(SystemClock):
    """A clock three days ahead."""

    def time(self) -> float:
        return super().time() + 3 * KEPT_S


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("older"), SETTINGS, seconds=SECONDS) as deployment:
        yield deployment


def token(system: Deployment, user: str) -> str:
    done = system.command("token", "--user", user, "--role", "user", "--lifespan", "168h", timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def array_of(system: Deployment, user_token: str, folder: Path, rates: Sequence[str]) -> list[resources_pb2.Job]:
    """Jobs of an array, which have ended."""
    specs = [
        resources_pb2.JobSpec(
            name="sweep",
            command=[sys.executable, SCRIPT, str(folder), rate],
            working_directory=str(folder),
            min_nodes=1,
            max_nodes=1,
            profile=resources_pb2.PROFILE_MODE_NEVER,
            backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
            array=resources_pb2.ArraySpec(),
            array_parameters={"rate": rate},
        )
        for rate in rates
    ]
    stubs = ServiceStubs(load(system.config), FixedToken(user_token))
    try:
        found = list(stubs.job_manager.SubmitJobs(pb.SubmitJobsRequest(specs=specs), timeout=60).jobs)
    finally:
        stubs.close()
    for one in found:
        wait_until(lambda one=one: system.state(one.id) == "COMPLETED", SECONDS, "the end of all jobs")
    return found


@asynccontextmanager
async def following(system: Deployment) -> AsyncIterator[SharedData]:
    """What a dashboard shares that was started three days after the jobs have ended."""
    settings = load(system.config)
    watcher = Watcher(settings, owner_credential(settings), DaysLater())
    task = asyncio.create_task(watcher.run())
    try:
        shared = SharedData(watcher, cast(Any, None))
        async with asyncio.timeout(SECONDS):
            while not watcher.watched.history.nodes:
                await watcher.changed.wait()
                watcher.changed.clear()
        yield shared
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def shown(shared: SharedData, who: Viewer, group: str, owner: str = "") -> tuple[str, list[list[str]], str]:
    """The note of the page, the rows of its table, and its CSV."""
    selection = Selection(group=group, owner=owner)
    page = ComparePage(shared, who, selection, "light")
    await page.ask()
    found = page.regions()
    rows = [[cell.text for cell in row.cells] for row in found.tables["compared"]]
    return found.texts["notes"], rows, as_csv(await compared_columns(shared, who, selection))


@pytest.mark.timeout(600)
async def test_two_users_compare_what_they_may_see_of_long_ago(system: Deployment, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    tmp_path.chmod(0o755)
    tokens = {user: await asyncio.to_thread(token, system, user) for user in ("ada", "bob")}
    of_ada = await asyncio.to_thread(array_of, system, tokens["ada"], tmp_path, ["0.1", "0.2"])
    of_bob = await asyncio.to_thread(array_of, system, tokens["bob"], tmp_path, ["0.5"])
    async with following(system) as shared:
        assert not shared.watched.history.jobs, "the dashboard itself knows nothing of jobs of that age"
        viewers = Viewers(lambda: shared.watcher.channel("job_manager"), shared.watcher.now)
        ada, bob = [await viewers.verify(tokens[user]) for user in ("ada", "bob")]
        assert ada is not None
        assert bob is not None
        first, second = (one.id for one in of_ada)
        for group in (of_ada[0].array_id, "sweep", f"{first} {second}"):
            notes, rows, text = await shown(shared, ada, group)
            assert notes == "", group
            assert [row[:5] for row in rows] == [
                [second, "sweep", "rate=0.2", "completed", "40"],
                [first, "sweep", "rate=0.1", "completed", "40"],
            ]
            logged = list(csv.DictReader(io.StringIO(text)))
            assert {(row["job"], row["metric"]) for row in logged} == {
                (one, metric) for one in (first, second) for metric in ("loss", "accuracy")
            }
        for group, owner in ((of_ada[0].array_id, ""), ("sweep", "ada"), (f"{first} {second}", "")):
            notes, rows, text = await shown(shared, bob, group, owner)
            assert "None of them has logged a metric that you may see" in notes
            assert [row[:5] for row in rows] == [[one, "sweep", "", "completed", "–"] for one in (second, first)], (
                "what all may see of a job, and nothing that it has logged"
            )
            assert list(csv.DictReader(io.StringIO(text))) == []
        _, rows, _ = await shown(shared, bob, "sweep")
        assert [row[0] for row in rows] == [of_bob[0].id], "one's own before those of others"
        notes, rows, _ = await shown(shared, bob, "j000999, nobody's")
        assert "is kept" in notes
        assert rows == []
