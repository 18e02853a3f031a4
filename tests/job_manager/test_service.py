"""JobManager over gRPC, with real processes under a supervisor that confirms at once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import monitor_pb2, resources_pb2
from tests.job_manager.serving import ManagerHarness, processes_of, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.builders import spec_message
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.processes

DONE = 'echo \'{"samples": 7, "metrics": {"accuracy": 0.5}}\' > $MALLETRAIN_JOB_DIR/completed.json'


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagerHarness]:
    python = make_python(tmp_path)
    section: dict[str, Any] = {"restart_backoff_seconds": 0.05, "reconcile_seconds": 0.05, "max_parallel": 3}
    async with serve_manager(tmp_path / "state", python, **section) as found:
        yield found
    assert not processes_of(tmp_path)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_job_from_submission_to_completion(harness: ManagerHarness) -> None:
    job_id = await harness.submit("sh", "-c", f"echo hello; {DONE}")
    assert (await harness.job(job_id)).state == resources_pb2.JOB_STATE_WAITING
    response = await harness.plan(1, j1="n1 n2")
    assert list(response.rescaled_job_ids) == [job_id]
    job = await harness.until(job_id, "COMPLETED")
    assert job.samples == 7
    assert dict(job.metrics) == {"accuracy": 0.5}
    assert job.HasField("end_time")
    events = await harness.events(job_id)
    assert [event.sequence for event in events] == sorted(event.sequence for event in events)
    assert all(event.reason for event in events)
    assert [resources_pb2.JobReason.Name(event.reason_code).removeprefix("JOB_REASON_") for event in events] == [
        *("SUBMITTED", "ADMITTED", "PLAN_STARTED"),
        *(["CONFIRMED"] if len(events) == 5 else []),  # unless it had ended before
        "TRAINER_DONE",
    ]
    assert job.reason_code == resources_pb2.JOB_REASON_TRAINER_DONE


async def test_a_program_that_ends_with_0_is_complete_with_its_last_samples(harness: ManagerHarness) -> None:
    harness.monitor.tell("j000001", 640, now=False)
    job_id = await harness.submit("true")
    await harness.plan(1, j1="n1")
    job = await harness.until(job_id, "COMPLETED")
    assert (job.samples, job.restarts) == (640, 0)
    assert job.reason == "stand-in: EXITED"


async def test_leave_while_running(harness: ManagerHarness) -> None:
    job_id = await harness.submit()
    await harness.plan(1, j1="n1 n2 n3")
    await harness.until(job_id, "RUNNING")
    harness.scavenger.tell(left="n2")
    (released,) = await harness.until_released(job_id)
    assert released.release_seconds > 0
    job = await harness.until(job_id, "RUNNING")
    assert list(job.confirmed_nodes) == ["n1", "n3"]
    assert job.preemptions == 1
    nodes = {found.get("MALLETRAIN_NODE") for found in processes_of(harness.state_dir).values()}
    assert nodes == {None, "n1", "n3"}
    assert (job_id, monitor_pb2.COMMAND_TYPE_RELEASE_REQUESTED) in harness.monitor.commands


async def test_release_nodes_answers_when_they_are_free(harness: ManagerHarness) -> None:
    job_id = await harness.submit(min_nodes=2)
    await harness.plan(1, j1="n1 n2")
    await harness.until(job_id, "RUNNING")
    for _ in range(2):
        response = await harness.stub.ReleaseNodes(pb.ReleaseNodesRequest(nodes=["n1", "n9"]), timeout=20)
        assert list(response.released) == ["n1", "n9"]
        assert "n1" not in {found.get("MALLETRAIN_NODE") for found in processes_of(harness.state_dir).values()}
    await harness.until(job_id, "WAITING")
    code, message = await refused(harness.plan(2, j1="n1 n2"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "n1" in message
    code, message = await refused(harness.stub.ReleaseNodes(pb.ReleaseNodesRequest()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_growth_takes_nodes_from_a_job_that_shrinks(harness: ManagerHarness) -> None:
    one, two = await harness.submit(), await harness.submit()
    await harness.plan(1, j1="n1 n2", j2="n3")
    await harness.until(one, "RUNNING")
    await harness.until(two, "RUNNING")
    await harness.plan(2, j1="n1", j2="n2 n3 n4")
    await harness.until(two, "RUNNING", holds=lambda job: len(job.confirmed_nodes) == 3)
    assert list((await harness.job(one)).confirmed_nodes) == ["n1"]


async def test_each_gpu_has_a_worker_unless_the_job_says_otherwise(harness: ManagerHarness) -> None:
    harness.scavenger.tell(joined="g1 g2 g3")
    await wait_until_async(lambda: {"g1", "g2", "g3"} <= (harness.manager.engine.state.idle or set()))
    by_gpu, asked = await harness.submit(), await harness.submit(slots_per_node=3)
    await harness.plan(1, j1="g1", j2="g3")
    await harness.until(by_gpu, "RUNNING")
    await harness.until(asked, "RUNNING")
    await harness.plan(2, j1="g1 g2", j2="g3")
    await harness.until(by_gpu, "RUNNING", holds=lambda job: len(job.confirmed_nodes) == 2)
    assert launched(harness, by_gpu) == ("2", [2])
    assert launched(harness, asked) == ("3", [3])
    await harness.plan(3, j1="", j2="g3")
    await harness.until(by_gpu, "WAITING")
    await harness.plan(4, j1="n1 n2", j2="g3")
    await harness.until(by_gpu, "RUNNING")
    assert launched(harness, by_gpu) == ("1", [1, 1])


def launched(harness: ManagerHarness, job_id: str) -> tuple[str, list[int]]:
    """What the newest supervisor was told of slots: its workers' variable, and those of its first hosts."""
    launch = json.loads((harness.state_dir / "jobs" / job_id / "launch.json").read_text())
    return launch["environment"]["MALLETRAIN_SLOTS_PER_NODE"], [host["slots"] for host in launch["hosts"]]


async def test_failures_end_with_the_log(harness: ManagerHarness) -> None:
    job_id = await harness.submit("sh", "-c", "echo learning rate is NaN; exit 3", max_restarts=1)
    await harness.plan(1, j1="n1")

    async def plan_again() -> None:
        await harness.until(job_id, "WAITING", holds=lambda job: job.restarts == 1 and not job.HasField("not_before"))
        await harness.plan(2, j1="n1")

    await plan_again()
    job = await harness.until(job_id, "FAILED")
    assert job.restarts == 1
    assert "n1 | learning rate is NaN" in job.reason


async def test_an_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    async with serve_manager(tmp_path, tmp_path / "none" / "python") as harness:
        job_id = await harness.submit(max_restarts=0)
        await harness.plan(1, j1="n1")
        assert "can't start" in (await harness.until(job_id, "FAILED")).reason


async def test_target_is_reached_by_monitors_count(harness: ManagerHarness) -> None:
    job_id = await harness.submit(target_samples=100)
    await harness.plan(1, j1="n1")
    await harness.until(job_id, "RUNNING")
    harness.monitor.tell(job_id, 100)
    assert (await harness.until(job_id, "COMPLETED")).samples == 100


async def test_cancel(harness: ManagerHarness) -> None:
    running, waiting = await harness.submit(), await harness.submit()
    await harness.plan(1, j1="n1")
    await harness.until(running, "RUNNING")
    for job_id in (running, waiting):
        await harness.stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
        await harness.until(job_id, "CANCELLED")
    again = await harness.stub.CancelJob(pb.CancelJobRequest(job_id=running))
    assert again.job.state == resources_pb2.JOB_STATE_CANCELLED
    code, _ = await refused(harness.stub.CancelJob(pb.CancelJobRequest(job_id="j000099")))
    assert code is grpc.StatusCode.NOT_FOUND


async def test_request_id_makes_submission_idempotent(harness: ManagerHarness) -> None:
    request = pb.SubmitJobsRequest(request_id="sweep-1", specs=[spec_message(), spec_message(name="two")])
    first = await harness.stub.SubmitJobs(request)
    second = await harness.stub.SubmitJobs(request)
    assert [job.id for job in first.jobs] == [job.id for job in second.jobs] == ["j000001", "j000002"]
    other = pb.SubmitJobsRequest(request_id="sweep-1", specs=[spec_message()])
    code, message = await refused(harness.stub.SubmitJobs(other))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("request_id")
    assert len((await harness.stub.ListJobs(pb.ListJobsRequest())).jobs) == 2


async def test_one_bad_job_and_none_is_stored(harness: ManagerHarness) -> None:
    request = pb.SubmitJobsRequest(specs=[spec_message(), spec_message(min_nodes=9)])
    code, message = await refused(harness.stub.SubmitJobs(request))
    assert (code, message) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "specs[1].min_nodes: expected at most max_nodes (4), got 9",
    )
    assert not (await harness.stub.ListJobs(pb.ListJobsRequest())).jobs


async def test_listing_in_pages(harness: ManagerHarness) -> None:
    for _ in range(5):
        await harness.submit()
    found, token = [], ""
    for size in (2, 2, 1):
        page = await harness.stub.ListJobs(pb.ListJobsRequest(page_size=2, page_token=token))
        assert len(page.jobs) == size
        found += [job.id for job in page.jobs]
        token = page.next_page_token
    assert found == [f"j00000{number}" for number in range(1, 6)]
    assert token == ""
    queued = pb.ListJobsRequest(states=[resources_pb2.JOB_STATE_QUEUED])
    assert [job.id for job in (await harness.stub.ListJobs(queued)).jobs] == ["j000004", "j000005"]
    (second,) = (await harness.stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message(name="second")]))).jobs
    assert [job.id for job in (await harness.stub.ListJobs(pb.ListJobsRequest(name="second"))).jobs] == [second.id]
    page = await harness.stub.ListJobs(pb.ListJobsRequest(name="nobody's", page_size=2))
    assert (list(page.jobs), page.next_page_token) == ([], "")
    events = await harness.stub.ListJobEvents(pb.ListJobEventsRequest(page_size=3))
    assert len(events.events) == 3
    assert events.next_page_token
    for request in (pb.ListJobsRequest(page_size=-1), pb.ListJobsRequest(page_token="x")):
        code, _ = await refused(harness.stub.ListJobs(request))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_listing_the_newest_of_a_group_first(harness: ManagerHarness) -> None:
    for name in ("study-0", "other", "study-1", "study", "studying-1", "study-2"):
        await harness.stub.SubmitJobs(pb.SubmitJobsRequest(specs=[spec_message(name=name)]))

    async def pages(**request: Any) -> list[list[str]]:
        found, token = [], ""
        while True:
            page = await harness.stub.ListJobs(pb.ListJobsRequest(page_token=token, **request))
            found.append([job.spec.name for job in page.jobs])
            token = page.next_page_token
            if not token:
                return found

    assert await pages(group="study", newest_first=True, page_size=2) == [["study-2", "study"], ["study-1", "study-0"]]
    assert await pages(group="study", page_size=3) == [["study-0", "study-1", "study"], ["study-2"]]
    assert await pages(group="study-1") == [["study-1"]]
    assert await pages(newest_first=True) == [["study-2", "studying-1", "study", "study-1", "other", "study-0"]]
    code, message = await refused(harness.stub.ListJobs(pb.ListJobsRequest(group="a\0")))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("group: expected characters other than NUL")


async def test_watching(harness: ManagerHarness) -> None:
    first = await harness.submit()
    call = harness.stub.WatchJobs(pb.WatchJobsRequest())
    snapshot = await call.read()
    assert snapshot.snapshot
    assert [job.id for job in snapshot.jobs] == [first]
    second = await harness.submit()
    change = await call.read()
    assert not change.snapshot
    assert [job.id for job in change.jobs] == [second]
    call.cancel()


async def test_logs_are_followed_to_the_end(harness: ManagerHarness) -> None:
    job_id = await harness.submit("sh", "-c", f"echo one; sleep 0.3; echo two; printf three; {DONE}")
    await harness.plan(1, j1="n3")
    request = pb.StreamLogsRequest(job_id=job_id, follow=True)
    lines = [line async for message in harness.stub.StreamLogs(request) for line in message.lines]
    assert lines == ["n3 | one", "n3 | two", "n3 | three"]
    request = pb.StreamLogsRequest(job_id=job_id, tail_lines=2)
    lines = [line async for message in harness.stub.StreamLogs(request) for line in message.lines]
    assert lines == ["n3 | two", "n3 | three"]
    missing = harness.stub.StreamLogs(pb.StreamLogsRequest(job_id="j000099"))
    code, _ = await refused(missing.read())
    assert code is grpc.StatusCode.NOT_FOUND


async def test_a_supervisor_that_is_killed(harness: ManagerHarness) -> None:
    job_id = await harness.submit()
    await harness.plan(1, j1="n1 n2")
    await harness.until(job_id, "RUNNING")
    supervisor = next(pid for pid, found in processes_of(harness.state_dir).items() if "MALLETRAIN_NODE" not in found)
    os.kill(supervisor, signal.SIGKILL)
    job = await harness.until(job_id, "WAITING")
    assert job.restarts == 1
    assert not processes_of(harness.state_dir), "its workers are swept before the job may start again"


async def test_a_supervisor_that_hangs_costs_its_job_but_not_the_node(tmp_path: Path) -> None:
    section: dict[str, Any] = {"drain_grace_seconds": 0.0, "reconcile_seconds": 0.05}
    async with serve_manager(tmp_path / "state", make_python(tmp_path), **section) as harness:
        job_id = await harness.submit()
        await harness.plan(1, j1="n1 n2")
        await harness.until(job_id, "RUNNING")
        found = processes_of(harness.state_dir).items()
        os.kill(next(pid for pid, environment in found if "MALLETRAIN_NODE" not in environment), signal.SIGSTOP)
        response = await harness.stub.ReleaseNodes(pb.ReleaseNodesRequest(nodes=["n1"]), timeout=20)
        assert list(response.released) == ["n1"]
        assert "n1" not in {found.get("MALLETRAIN_NODE") for found in processes_of(harness.state_dir).values()}
        job = await harness.until(job_id, "RUNNING")
        assert (list(job.confirmed_nodes), job.restarts) == (["n2"], 0)


async def test_a_node_that_leaves_while_the_supervisor_boots(harness: ManagerHarness) -> None:
    job_id = await harness.submit()
    await harness.plan(1, j1="n1 n2")
    response = await harness.stub.ReleaseNodes(pb.ReleaseNodesRequest(nodes=["n1"]), timeout=20)
    assert list(response.released) == ["n1"]
    job = await harness.until(job_id, "RUNNING")
    assert (list(job.confirmed_nodes), job.restarts) == (["n2"], 0)
