"""JobManager over gRPC, called by two users, a viewer, an operator and a service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from malletrain.runtime.access.identity import Role
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import job_manager_pb2_grpc, resources_pb2
from tests.job_manager.serving import Caller, ManagerHarness, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.access import credential_of
from tests.support.builders import spec_message
from tests.support.channels import plain_channel

CALLERS = {
    "ada": Role.USER,
    "bob": Role.USER,
    "vera": Role.VIEWER,
    "olga": Role.OPERATOR,
    "allocator": Role.SERVICE,
    "ada as viewer": Role.VIEWER,
}
WHOLE = ("ada", "olga", "allocator", "ada as viewer")
"""Who sees all of a job of ada."""
PUBLIC = ("bob", "vera")
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@dataclass
class People:
    """A JobManager and those who call it. `job_id` is a job of ada, which has a secret."""

    harness: ManagerHarness
    callers: dict[str, Caller]
    job_id: str

    def __getitem__(self, name: str) -> Caller:
        return self.callers[name]


@contextlib.asynccontextmanager
async def people_at(tmp_path: Path, **section: Any) -> AsyncIterator[People]:
    section = {"reconcile_seconds": 0.05, "restart_backoff_seconds": 0.05} | section
    async with (
        serve_manager(tmp_path / "state", make_python(tmp_path), **section) as harness,
        contextlib.AsyncExitStack() as stack,
    ):
        callers = {}
        for name, role in CALLERS.items():
            credential = credential_of(name.partition(" ")[0], role)
            channel = await stack.enter_async_context(plain_channel(harness.address, credential))
            callers[name] = Caller(job_manager_pb2_grpc.JobManagerServiceStub(channel))
        job_id = await callers["ada"].submit(
            "sh",
            "-c",
            "echo $GREETING $API_TOKEN; sleep 60",
            environment={"API_TOKEN": "hunter2", "GREETING": "hello"},
            family="resnet",
        )
        yield People(harness, callers, job_id)


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    async with people_at(tmp_path) as found:
        yield found


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def log_of(caller: Caller, job_id: str) -> list[str]:
    lines: list[str] = []
    async for response in caller.stub.StreamLogs(pb.StreamLogsRequest(job_id=job_id), timeout=10):
        lines += response.lines
    return lines


def assert_whole(job: resources_pb2.Job) -> None:
    assert job.spec.command[:2] == ["sh", "-c"]
    assert job.spec.working_directory == "/"
    assert dict(job.spec.environment) == {"API_TOKEN": "***", "GREETING": "hello"}
    assert job.spec.family == "resnet"
    assert job.reason


def assert_public(job: resources_pb2.Job) -> None:
    assert not job.spec.command
    assert not job.spec.working_directory
    assert not job.spec.environment
    assert not job.spec.family
    assert not job.reason
    assert not job.metrics
    assert (job.owner, job.spec.name, job.spec.weight) == ("ada", "job", 1.0)
    assert (job.spec.min_nodes, job.spec.max_nodes) == (1, 4)
    assert job.state
    assert job.reason_code
    assert job.HasField("create_time")


def assert_for_service(job: resources_pb2.Job) -> None:
    assert list(job.spec.command) == ["sh"], "the program alone, by which the Allocator tells who boots alike"
    assert not job.spec.environment
    assert not job.reason
    assert job.spec.family == "resnet"


def check_among_many(name: str, job: resources_pb2.Job) -> None:
    if name in PUBLIC:
        assert_public(job)
    elif CALLERS[name] is Role.SERVICE:
        assert_for_service(job)
    else:
        assert_whole(job)


async def test_the_owner_is_who_submitted_and_each_sees_what_is_theirs_to_see(people: People) -> None:
    for name in CALLERS:
        found = await people[name].job(people.job_id)
        listed = (await people[name].stub.ListJobs(pb.ListJobsRequest())).jobs
        assert [job.id for job in listed] == [people.job_id]
        assert {job.owner for job in (found, *listed)} == {"ada"}
        (assert_public if name in PUBLIC else assert_whole)(found)
        check_among_many(name, listed[0])
    assert people.harness.manager.engine.state.jobs[people.job_id].spec.environment["API_TOKEN"] == "hunter2"


async def test_what_submission_and_cancel_answer_is_the_callers_own(people: People) -> None:
    spec = spec_message(environment={"API_TOKEN": "hunter2"})
    (job,) = (await people["bob"].stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec]))).jobs
    assert (job.owner, dict(job.spec.environment)) == ("bob", {"API_TOKEN": "***"})
    cancelled = (await people["bob"].stub.CancelJob(pb.CancelJobRequest(job_id=job.id))).job
    assert cancelled.reason == "cancelled by its owner"
    by_operator = (await people["olga"].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id))).job
    assert by_operator.reason == "cancelled by olga"
    assert list(cancelled.spec.command) == ["sleep", "60"]


async def test_jobs_are_listed_by_owner(people: People) -> None:
    of_bob = [await people["bob"].submit() for _ in range(3)]
    of_olga = await people["olga"].submit()

    async def listed(**request: Any) -> list[str]:
        return [job.id for job in (await people["vera"].stub.ListJobs(pb.ListJobsRequest(**request))).jobs]

    assert await listed() == [people.job_id, *of_bob, of_olga]
    assert await listed(owner="bob") == of_bob
    assert await listed(owner="bob", page_size=2) == of_bob[:2]
    assert await listed(owner="bob", page_token=people.job_id[-1]) == of_bob
    assert await listed(owner="olga", states=[resources_pb2.JOB_STATE_RUNNING]) == []
    assert await listed(owner="vera") == []


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.processes
async def test_only_owner_operators_and_services_read_the_log(people: People, name: str) -> None:
    await people.harness.plan(1, j1="n1")
    await people.harness.until(people.job_id, "RUNNING")
    if name in WHOLE:
        async with asyncio.timeout(20):
            while not (lines := await log_of(people[name], people.job_id)):
                await asyncio.sleep(0.02)
        assert lines == ["n1 | hello hunter2"], "the job itself has the secret"
        return
    for follow in (False, True):
        request = pb.StreamLogsRequest(job_id=people.job_id, follow=follow)
        code, message = await code_of(people[name].stub.StreamLogs(request, timeout=10).read())
        assert code is DENIED
        assert message == (
            f"job {people.job_id} belongs to ada: only its owner and operators may read its log, "
            f"and {name} has the role {CALLERS[name]}"
        )


async def test_only_owner_operators_and_services_cancel(people: People) -> None:
    for name, words in {
        "bob": "belongs to ada: only its owner and operators may cancel it, and bob has the role user",
        "vera": "CancelJob needs the role user",
        "ada as viewer": "CancelJob needs the role user",
    }.items():
        code, message = await code_of(people[name].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id)))
        assert code is DENIED
        assert words in message
    assert (await people["ada"].job(people.job_id)).state == resources_pb2.JOB_STATE_WAITING
    for name in ("ada", "olga", "allocator"):
        job_id = await people["ada"].submit()
        job = (await people[name].stub.CancelJob(pb.CancelJobRequest(job_id=job_id))).job
        assert job.state == resources_pb2.JOB_STATE_CANCELLED
    code, _ = await code_of(people["bob"].stub.CancelJob(pb.CancelJobRequest(job_id=job_id)))
    assert code is DENIED, "also of a job that has ended"


async def test_a_refused_cancel_is_in_the_audit_log(people: People) -> None:
    with capture_logs() as logs:
        code, message = await code_of(people["bob"].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id)))
        assert code is DENIED
        await people["ada"].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id))
    lines = [line for line in logs if line["event"] == "audit"]
    assert [(line["user"], line["allowed"], line["job"], line.get("reason", "")) for line in lines] == [
        ("bob", True, people.job_id, ""),
        ("bob", False, people.job_id, message),
        ("ada", True, people.job_id, ""),
    ]


async def test_others_get_the_journal_without_its_prose(people: People) -> None:
    of_bob = await people["bob"].submit()
    for name in CALLERS:
        for asked in (people.job_id, ""):
            events = await people[name].events(asked)
            assert [event.reason_code for event in events if event.job_id == people.job_id] == [
                resources_pb2.JOB_REASON_SUBMITTED,
                resources_pb2.JOB_REASON_ADMITTED,
            ]
            for event in events:
                sees = {people.job_id: WHOLE, of_bob: ("bob", "olga", "allocator")}[event.job_id]
                assert bool(event.reason) == (name in sees)


@pytest.mark.parametrize("name", CALLERS)
async def test_who_watches_gets_each_job_as_it_is_visible(people: People, name: str) -> None:
    watch = people[name].stub.WatchJobs(pb.WatchJobsRequest(), timeout=30)
    messages = aiter(watch)
    first = await anext(messages)
    assert first.snapshot
    (job,) = first.jobs
    check_among_many(name, job)
    of_bob = await people["bob"].submit()
    changed: dict[str, resources_pb2.Job] = {}
    while of_bob not in changed:
        changed = {job.id: job for job in (await anext(messages)).jobs}
    job = changed[of_bob]
    assert bool(job.spec.command) == (name in ("bob", "olga", "allocator"))
    assert bool(job.reason) == (name in ("bob", "olga"))
    watch.cancel()


@pytest.mark.system
async def test_a_failure_with_the_tail_of_the_log_is_not_for_others(people: People) -> None:
    job_id = await people["ada"].submit("sh", "-c", "echo the loss of ada is NaN; exit 3", max_restarts=0)
    await people.harness.plan(1, j2="n1")
    failed = await people["ada"].until(job_id, "FAILED")
    assert "the loss of ada is NaN" in failed.reason
    seen = await people["bob"].job(job_id)
    assert (seen.state, seen.reason_code) == (
        resources_pb2.JOB_STATE_FAILED,
        resources_pb2.JOB_REASON_WORKER_FAILED,
    )
    events = await people["bob"].events(job_id)
    assert b"NaN" not in seen.SerializeToString()
    assert not any(b"NaN" in event.SerializeToString() for event in events)


async def test_a_request_id_is_its_first_users(people: People) -> None:
    request = pb.SubmitJobsRequest(request_id="sweep", specs=[spec_message()])
    first = await people["ada"].stub.SubmitJobs(request)
    assert [job.id for job in (await people["ada"].stub.SubmitJobs(request)).jobs] == [job.id for job in first.jobs]
    for name in ("bob", "olga"):
        code, message = await code_of(people[name].stub.SubmitJobs(request))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert message.startswith("request_id: expected an identifier that no other user has used")


async def test_too_many_jobs_of_one_owner_are_refused_as_a_whole(tmp_path: Path) -> None:
    async with people_at(tmp_path, max_jobs_per_owner=3) as people:
        code, message = await code_of(people["ada"].stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message()] * 3)))
        assert code is EXHAUSTED
        assert message.startswith("ada has 1 jobs that have not ended and submits 3 more: at most 3")
        assert len((await people["ada"].stub.ListJobs(pb.ListJobsRequest())).jobs) == 1
        await people["ada"].stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message()] * 2))
        for name in ("bob", "olga", "allocator"):
            await people[name].stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message()] * 3))
            code, _ = await code_of(people[name].submit())
            assert code is EXHAUSTED
        await people["ada"].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id))
        await people["ada"].submit()


async def test_too_many_submissions_of_one_owner_are_refused(tmp_path: Path) -> None:
    async with people_at(tmp_path, max_submissions_per_second=0.001) as people:
        code, message = await code_of(people["ada"].submit())
        assert code is EXHAUSTED
        assert message.startswith("ada submits too often: at most 0.001 jobs a second")
        await people["bob"].submit()
        for name in ("bob", "ada"):
            code, _ = await code_of(people[name].submit())
            assert code is EXHAUSTED
        assert len((await people["ada"].stub.ListJobs(pb.ListJobsRequest())).jobs) == 2


async def test_a_restart_keeps_the_owner(tmp_path: Path) -> None:
    async with people_at(tmp_path) as people:
        job_id = people.job_id
    async with serve_manager(tmp_path / "state", make_python(tmp_path / "later")) as harness:
        assert (await harness.job(job_id)).owner == "ada"


@pytest.mark.processes
async def test_all_who_may_read_see_what_owners_use(people: People) -> None:
    await people["bob"].submit()
    await people["allocator"].plan(1, j1="n1 n2", j2="n3")
    await people["olga"].until(people.job_id, "RUNNING")
    for name in CALLERS:
        found = await people[name].stub.ListOwners(pb.ListOwnersRequest())
        assert found.half_life_seconds == 604_800.0
        ada, bob = found.owners
        assert [(ada.owner, ada.jobs, ada.admitted_jobs, ada.nodes), (bob.owner, bob.nodes)] == [
            ("ada", 1, 1, 2),
            ("bob", 1),
        ]
        assert ada.used_node_seconds > 0.0
        assert ada.used_fraction + bob.used_fraction == pytest.approx(1.0)


async def test_a_limit_of_places_for_each_owner_leaves_room_for_others(tmp_path: Path) -> None:
    async with people_at(tmp_path, max_parallel_per_owner=1) as people:
        second, other = await people["ada"].submit(), await people["bob"].submit()
        held_back = await people["ada"].job(second)
        assert not held_back.admitted
        assert held_back.reason == "waits for one of 10 places, of which ada may have 1"
        assert held_back.reason_code == resources_pb2.JOB_REASON_OWNER_LIMIT
        assert (await people["bob"].job(other)).admitted
        await people["ada"].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id))
        assert (await people["ada"].job(second)).admitted


async def test_only_own_jobs_can_be_waited_for_and_a_repeated_submission_has_its_answer(people: People) -> None:
    depends = {"dependencies": resources_pb2.Dependencies(after_ok=[people.job_id])}
    code, message = await code_of(people["bob"].submit(**depends))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("specs[0].dependencies.after_ok[0]: expected a job of bob; j000001 is ada's")
    request = pb.SubmitJobsRequest(request_id="once", specs=[spec_message(**depends)])
    (waiting,) = (await people["ada"].stub.SubmitJobs(request)).jobs
    assert (waiting.reason, waiting.admitted) == ("waits for j000001 to complete", False)
    assert waiting.reason_code == resources_pb2.JOB_REASON_DEPENDENCY
    await people["olga"].stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id))
    ended = await people["ada"].until(waiting.id, "CANCELLED")
    assert ended.reason.startswith("cancelled: j000001 ended CANCELLED")
    assert [job.id for job in (await people["ada"].stub.SubmitJobs(request)).jobs] == [waiting.id]
    code, message = await code_of(people["ada"].submit(**depends))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "j000001 is CANCELLED" in message
    later = await people["ada"].submit(dependencies=resources_pb2.Dependencies(after=[people.job_id]))
    assert (await people["ada"].job(later)).admitted
