"""What one user has made is looked at in threads of that user: JobManager's event loop serves the others meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from malletrain.job_manager import submission
from malletrain.job_manager.dependencies import check_named
from malletrain.job_manager.log_reader import LogReader, WrittenLine
from malletrain.job_manager.submission import MAX_SPECS, check_specs
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import resources_pb2
from tests.job_manager.test_owners import EXHAUSTED, People, code_of, people_at
from tests.support.builders import spec_message
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    async with people_at(tmp_path) as found:
        yield found


class Gate:
    """Keeps whoever comes in another thread than the event loop's waiting until it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open = threading.Event()

    def pass_through(self) -> None:
        assert threading.current_thread() is not threading.main_thread(), "on the event loop"
        self.waiting += 1
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


async def test_others_are_served_while_a_submission_is_checked(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, plain = Gate(), submission.check_command

    def slow(at: str, command: list[str], *others: object) -> None:
        if "evil" in command:
            gate.pass_through()
        plain(at, command, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(submission, "check_command", slow)
    evil = pb.SubmitJobsRequest(specs=[spec_message(command=["sleep", "evil"])])
    floods = [asyncio.ensure_future(people["ada"].stub.SubmitJobs(evil)) for _ in range(6)]
    await wait_until_async(lambda: gate.waiting, 30, "the check")
    await people["bob"].stub.GetJob(pb.GetJobRequest(job_id=people.job_id))
    await people["bob"].submit()
    gate.open()
    assert len({found.jobs[0].id for found in await asyncio.gather(*floods)}) == len(floods)


async def test_the_same_submission_twice_at_once_is_one(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, plain = Gate(), submission.check_command

    def slow(at: str, command: list[str], *others: object) -> None:
        gate.pass_through()
        plain(at, command, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(submission, "check_command", slow)
    request = pb.SubmitJobsRequest(request_id="once", specs=[spec_message()])
    both = [asyncio.ensure_future(people["ada"].stub.SubmitJobs(request)) for _ in range(2)]
    await wait_until_async(lambda: gate.waiting == 2, 30, "both checks")
    gate.open()
    first, second = await asyncio.gather(*both)
    assert [job.id for job in first.jobs] == [job.id for job in second.jobs]


async def test_jobs_are_counted_and_not_calls(tmp_path: Path) -> None:
    async with people_at(tmp_path, max_submissions_per_second=0.001) as people:
        stub = people["bob"].stub
        await stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message()] * 40))
        code, message = await code_of(people["bob"].submit())
        assert code is EXHAUSTED
        assert "at most 0.001 jobs a second (job_manager.max_submissions_per_second); try again in" in message
        too_many = stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message()] * (MAX_SPECS + 1)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await too_many
        assert caught.value.code() is EXHAUSTED


def test_a_submission_can_have_so_many_files_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()

    def counted(path: Path) -> int:
        next(looks)
        return 0o040755 if path == Path("/") else 0

    monkeypatch.setattr(submission, "mode_of", counted)
    path = ":".join(f"/no/{number}" for number in range(100))
    specs = [spec_message(command=[f"p{number}"], working_directory="/") for number in range(MAX_SPECS)]
    with pytest.raises(InvalidInputError, match="program that is on the services' PATH"):
        check_specs(specs, path)
    monkeypatch.setattr(
        submission,
        "is_program",
        lambda at, file, files: files.is_kind(at, lambda _: False, file) or file.parent.name == "99",
    )
    with pytest.raises(InvalidInputError, match="at most 20000 files have to be looked at"):
        check_specs(specs, path)
    assert next(looks) <= 20_200


def test_what_specs_have_in_common_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    plain = submission.mode_of
    monkeypatch.setattr(submission, "mode_of", lambda path: (looked.append(path), plain(path))[1])
    check_specs([spec_message(command=["sleep", "1"])] * 500, "/no/such:/bin:/usr/bin")
    assert len(looked) == len(set(looked)) <= 4


async def test_others_are_served_while_a_log_is_read(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, plain = Gate(), LogReader.read

    def slow(self: LogReader, to_the_end: bool = False, states: bool = False, fresh: bool = False) -> list[WrittenLine]:
        gate.pass_through()
        return plain(self, to_the_end, states, fresh)

    monkeypatch.setattr(LogReader, "read", slow)
    request = pb.StreamLogsRequest(job_id=people.job_id, follow=True)
    streams = [people["ada"].stub.StreamLogs(request) for _ in range(4)]
    reading = [asyncio.ensure_future(stream.read()) for stream in streams]
    await wait_until_async(lambda: gate.waiting == 2, 30, "as many threads as one user has")
    assert (await people["ada"].stub.GetJob(pb.GetJobRequest(job_id=people.job_id))).job.id == people.job_id
    await people["ada"].submit()
    assert gate.waiting == 2
    gate.open()
    await asyncio.gather(*reading)
    for stream in streams:
        stream.cancel()


async def test_jobs_that_are_waited_for_are_looked_at_in_threads_and_once_more_where_one_has_ended_meanwhile(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, plain = Gate(), check_named

    def slow(*arguments: Any) -> frozenset[str]:
        found = plain(*arguments)
        gate.pass_through()
        return found

    monkeypatch.setattr("malletrain.job_manager.service.check_named", slow)
    ada = people["ada"]
    names = [people.job_id]
    ok = asyncio.ensure_future(ada.submit(dependencies=resources_pb2.Dependencies(after_ok=names)))
    any_end = asyncio.ensure_future(ada.submit(dependencies=resources_pb2.Dependencies(after=names)))
    await wait_until_async(lambda: gate.waiting == 2, 30, "both checks")
    await people["bob"].submit()
    await ada.stub.CancelJob(pb.CancelJobRequest(job_id=people.job_id))
    await ada.until(people.job_id, "CANCELLED")
    gate.open()
    code, message = await code_of(ok)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "j000001 is CANCELLED" in message
    assert (await ada.job(await any_end)).admitted
