"""What the operator's webhook and command are told: a real HTTP server that fails, hangs and answers, real programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.notifications.notices import (
    JobNotice,
    NoticeKind,
    Waits,
    due_waits,
    end_notice,
    waits_now,
)
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.notices.delivery import CommandDelivery, NoticeOutcome, WebhookDelivery, read_webhook
from malletrain.v1 import job_manager_pb2 as pb
from tests.job_manager.serving import ManagerHarness, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.builders import job
from tests.support.waiting import wait_until_async
from tests.support.webhooks import SECRET, Receiver, received, webhook_file

SECTION = "job_manager.notifications"
FIELD = f"{SECTION}.webhook_file"
QUICK = {"retry_seconds": 0.05, "retry_max_seconds": 0.1, "timeout_seconds": 20.0}


def jobs_told(receiver: Receiver) -> list[tuple[str, str]]:
    return [(body["event"], body["job"]["id"]) for _, body in receiver.requests]


@asynccontextmanager
async def manager(folder: Path, **notifications: Any) -> AsyncIterator[ManagerHarness]:
    python = folder / "bin" / "python"
    if not python.exists():
        assert make_python(folder) == python
    section: dict[str, Any] = {"reconcile_seconds": 0.05, "notifications": {**QUICK, **notifications}}
    async with serve_manager(folder / "state", python, **section) as harness:
        yield harness


async def cancelled(harness: ManagerHarness, **changes: Any) -> str:
    job_id = await harness.submit(**changes)
    await harness.stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
    await harness.until(job_id, "CANCELLED")
    return job_id


@pytest.mark.processes
async def test_a_webhook_that_fails_first_is_told_once_it_answers(tmp_path: Path) -> None:
    with received(503, 429, 204) as receiver:
        file = webhook_file(tmp_path, receiver.url)
        async with manager(tmp_path, webhook_file=file, events=("cancelled",)) as harness:
            first = await cancelled(harness, name="first")
            second = await cancelled(harness)
            await wait_until_async(lambda: len(receiver.requests) == 4, 60, "four attempts")
        headers, body = receiver.requests[2]
    assert jobs_told(receiver) == [("cancelled", first)] * 3 + [("cancelled", second)]
    assert len({body["id"] for _, body in receiver.requests}) == 2, "what is told again has the same id"
    assert (headers["Authorization"], headers["Content-Type"]) == (SECRET, "application/json")
    assert (body["job"]["name"], body["job"]["state"], body["job"]["reasonCode"]) == ("first", "CANCELLED", "CANCELLED")
    assert not {"command", "environment", "reason", "workingDirectory"} & body["job"].keys()


@pytest.mark.processes
async def test_a_webhook_that_hangs_holds_up_nothing(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat >> {said}\nenv >> {tmp_path}/env\necho >> {said}\n")
    program.chmod(0o700)
    with received(0) as receiver:
        file = webhook_file(tmp_path, receiver.url)
        options: dict[str, Any] = {"webhook_file": file, "command": (str(program),), "timeout_seconds": 60.0}
        async with manager(tmp_path, events=("cancelled",), **options) as harness:
            first = await cancelled(harness)
            await wait_until_async(lambda: receiver.requests, 60, "a request that hangs")
            posts = [child for child in psutil.Process().children() if "post.py" in " ".join(child.cmdline())]
            assert posts, "it is posted by a process of its own"
            for child in posts:
                assert SECRET not in " ".join(child.cmdline())
                assert receiver.url not in " ".join(child.cmdline())
                assert not [name for name in child.environ() if name.startswith("MALLETRAIN_")]
            begin = time.monotonic()
            jobs = [await harness.submit() for _ in range(20)]
            assert time.monotonic() - begin < 10
            assert len(jobs) == 20
            await wait_until_async(lambda: said.exists() and first in said.read_text(), 60, "the command is told")
            ending = time.monotonic()
        assert time.monotonic() - ending < 15, "JobManager ends without waiting for it"
    assert json.loads(said.read_text().splitlines()[0])["event"] == "cancelled"
    assert "MALLETRAIN_" not in (tmp_path / "env").read_text()


@pytest.mark.processes
async def test_a_delivery_that_hangs_is_ended_and_tried_again(tmp_path: Path) -> None:
    with received(0, 204) as receiver:
        file = webhook_file(tmp_path, receiver.url)
        async with manager(tmp_path, webhook_file=file, events=("cancelled",), timeout_seconds=3.0) as harness:
            job_id = await cancelled(harness)
            await wait_until_async(lambda: len(receiver.requests) == 2, 60, "a second attempt")
    assert jobs_told(receiver) == [("cancelled", job_id)] * 2


@pytest.mark.processes
async def test_what_could_not_be_told_is_told_by_the_next_jobmanager_and_nothing_twice(tmp_path: Path) -> None:
    with received() as receiver:
        file = webhook_file(tmp_path, receiver.url)
        async with manager(tmp_path, events=("cancelled",)) as harness:
            await cancelled(harness)  # before there was a receiver
        async with manager(tmp_path, webhook_file=file, events=("cancelled",)) as harness:
            told = await cancelled(harness)
            await wait_until_async(lambda: jobs_told(receiver) == [("cancelled", told)], 60, "the first notice")
            noted = tmp_path / "state" / "notifications-webhook.json"
            row = (await harness.events(told))[-1].sequence
            await wait_until_async(lambda: json.loads(noted.read_text())["sequence"] >= row, 10, "it is noted")
            receiver.answers = [503] * 1000
            missed = await cancelled(harness)
            await wait_until_async(lambda: len(receiver.requests) > 2, 60, "attempts")
        receiver.answers, receiver.requests = [], []
        async with manager(tmp_path, webhook_file=file, events=("cancelled",)) as harness:
            await wait_until_async(lambda: receiver.requests, 60, "the missed notice")
            last = await cancelled(harness)
            await wait_until_async(lambda: len(receiver.requests) > 1, 60, "the next one")
    assert jobs_told(receiver) == [("cancelled", missed), ("cancelled", last)]
    assert noted.stat().st_mode & 0o077 == 0


@pytest.mark.processes
async def test_what_a_webhook_refuses_is_left_out_and_redirects_are_not_followed(tmp_path: Path) -> None:
    with received(400, 302) as receiver:
        file = webhook_file(tmp_path, receiver.url)
        async with manager(tmp_path, webhook_file=file, events=("cancelled",)) as harness:
            jobs = [await cancelled(harness) for _ in range(3)]
            await wait_until_async(lambda: len(receiver.requests) == 3, 60, "all notices")
    assert jobs_told(receiver) == [("cancelled", job_id) for job_id in jobs]


@pytest.mark.processes
async def test_a_notice_is_given_up_after_a_time(tmp_path: Path) -> None:
    with received(503, 503, 503, 503) as receiver:
        file = webhook_file(tmp_path, receiver.url)
        options: dict[str, Any] = {"events": ("cancelled",), "give_up_seconds": 0.01}
        async with manager(tmp_path, webhook_file=file, **options) as harness:
            jobs = [await cancelled(harness) for _ in range(2)]
            await wait_until_async(lambda: len(receiver.requests) == 2, 60, "one attempt each")
    assert jobs_told(receiver) == [("cancelled", job_id) for job_id in jobs]


@pytest.mark.processes
async def test_a_job_that_waits_for_long_is_told_once(tmp_path: Path) -> None:
    with received() as receiver:
        file = webhook_file(tmp_path, receiver.url)
        async with manager(
            tmp_path, webhook_file=file, events=("waiting", "cancelled"), waiting_seconds=0.2
        ) as harness:
            job_id = await harness.submit(name="waits")
            await wait_until_async(lambda: receiver.requests, 60, "the notice")
            assert receiver.requests[0][1]["waitedSeconds"] >= 0.2
            await harness.stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
            await wait_until_async(lambda: ("cancelled", job_id) in jobs_told(receiver), 60, "its end")
    assert jobs_told(receiver) == [("waiting", job_id), ("cancelled", job_id)]


@pytest.mark.processes
async def test_a_command_that_fails_or_hangs_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/child\nwait\n")
    program.chmod(0o700)
    delivery = await CommandDelivery((str(program),), 1.0, SECTION)("{}")
    assert (delivery.outcome, delivery.reason) == (NoticeOutcome.TRY_AGAIN, "no end within 1 s")
    child = int((tmp_path / "child").read_text())
    await wait_until_async(lambda: not psutil.pid_exists(child) or _is_over(child), 10, "its child's end")
    delivery = await CommandDelivery(("/bin/false",), 30.0, SECTION)("{}")
    assert (delivery.outcome, delivery.reason) == (NoticeOutcome.TRY_AGAIN, "exit status 1")
    assert (await CommandDelivery(("/bin/true",), 30.0, SECTION)("x" * 1_000_000)).outcome is NoticeOutcome.DELIVERED


def _is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.processes
async def test_a_server_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    delivery = await WebhookDelivery(webhook_file(tmp_path, "http://127.0.0.1:9/"), 30.0, SECTION)("{}")
    assert (delivery.outcome, delivery.reason) == (NoticeOutcome.TRY_AGAIN, "ConnectionRefusedError")
    (tmp_path / "webhook").unlink()


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        ("https://hooks.example/T0/secret\n", 0o644, "only its owner"),
        ("", 0o600, "one or two lines"),
        ("https://a/\nb\nc\n", 0o600, "one or two lines"),
        ("https://a/\n" + "b" * 9000, 0o600, "one or two lines"),
        ("https://a/\nBearer \x1b[2J\n", 0o600, "one or two lines"),
        ("http://hooks.example/secret\n", 0o600, "https URL"),
        ("ftp://127.0.0.1/secret\n", 0o600, "https URL"),
        ("file:///etc/passwd\n", 0o600, "https URL"),
        ("https://[bad/secret\n", 0o600, "https URL"),
        ("https://host:99999/secret\n", 0o600, "https URL"),
        ("https://user:secret@hooks.example/\n", 0o600, "no user"),
    ],
)
def test_files_of_webhooks_are_refused_by_name_without_their_content(
    tmp_path: Path, content: str, mode: int, expected: str
) -> None:
    path = tmp_path / "webhook"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(InvalidInputError, match=expected) as caught:
        read_webhook(path, FIELD)
    assert "notifications.webhook_file" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_of_a_webhook_that_is_right(tmp_path: Path) -> None:
    path = webhook_file(tmp_path, "https://hooks.example/T0", "")
    assert read_webhook(path, FIELD) == ("https://hooks.example/T0", "")
    assert read_webhook(webhook_file(tmp_path, "http://[::1]:80/x"), FIELD) == ("http://[::1]:80/x", SECRET)
    with pytest.raises(InvalidInputError, match="can be read"):
        read_webhook(tmp_path / "none", FIELD)


@pytest.mark.parametrize("command", [("true",), ("/not/there",), ("/etc",), ("/etc/passwd",)])
def test_commands_that_are_none_are_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"notifications.command\[0\]"):
        CommandDelivery(command, 1.0, SECTION)


def event(before: JobState | None, after: JobState) -> JobEvent:
    return JobEvent(5.0, "j000001", before, after, JobReason.EXITED, "prose with secrets", ())


def test_only_ends_that_are_asked_for_are_told() -> None:
    kinds = (NoticeKind.FAILED,)
    ended = job(state=JobState.FAILED, reason="prose with secrets")
    notice = end_notice(7, event(JobState.RUNNING, JobState.FAILED), ended, kinds)
    assert notice == JobNotice("7", NoticeKind.FAILED, 5.0, ended)
    assert "secrets" not in notice.as_json()
    assert end_notice(8, event(JobState.RUNNING, JobState.COMPLETED), ended, kinds) is None
    assert end_notice(8, event(JobState.RUNNING, JobState.WAITING), ended, kinds) is None
    assert end_notice(8, event(JobState.RUNNING, JobState.FAILED), None, kinds) is None, "it is no longer kept"
    assert end_notice(8, event(JobState.FAILED, JobState.FAILED), ended, kinds) is None, "its nodes were released"


def test_waits_begin_at_submission_or_when_nodes_are_lost_and_end_with_nodes() -> None:
    first = waits_now(Waits(), [job(create_time=100.0)], 150.0)
    assert due_waits(first, 50.0, 149.0) == []
    assert due_waits(first, 50.0, 150.0) == ["j000001"]
    told = replace(first, told=frozenset({"j000001"}))
    assert due_waits(waits_now(told, [job(state=JobState.QUEUED)], 900.0), 50.0, 900.0) == [], "told once"
    assert waits_now(told, [job(state=JobState.RUNNING)], 901.0) == Waits()
    again = waits_now(Waits(), [job(create_time=100.0, start_time=120.0)], 1000.0)
    assert due_waits(again, 50.0, 1049.0) == []
    assert due_waits(again, 50.0, 1050.0) == ["j000001"]


@pytest.mark.processes
def test_the_event_loop_is_the_only_one_that_waits() -> None:
    async def main() -> None:
        task = asyncio.create_task(CommandDelivery(("/bin/sleep", "1000"), 1000.0, SECTION)("{}"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not [child for child in psutil.Process().children() if "sleep" in " ".join(child.cmdline())]
