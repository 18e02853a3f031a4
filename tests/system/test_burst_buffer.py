"""Our own queue with burst buffer on real services: order, bound, nobody without a request held up, and the quota after
kill -9 of JobManager."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]
SECONDS = 120.0
BOUND = 2

SETTINGS = f"""
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4"]
debounce_seconds = 0
[job_manager]
burst_buffer_gb = 4000
admission = "window"
starvation_bound = {BOUND}
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("burst-buffer"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 4, 30, "all nodes")
        yield deployment


def submit(stubs: ServiceStubs, gb: int) -> str:
    spec = resources_pb2.JobSpec(
        name=f"holds {gb} GB",
        command=["sh", "-c", "echo holds ${MALLETRAIN_BURST_BUFFER_GB-nothing}; exec sleep 1000"],
        working_directory="/",
        min_nodes=1,
        max_nodes=1,
        curve=[resources_pb2.ScalingPoint(nodes=1, rate=10.0)],
        profile=resources_pb2.PROFILE_MODE_NEVER,
        backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
        burst_buffer_gb=gb,
    )
    request = job_manager_pb2.SubmitJobsRequest(specs=[spec])
    return str(stubs.job_manager.SubmitJobs(request, timeout=10).jobs[0].id)


def job(stubs: ServiceStubs, job_id: str) -> resources_pb2.Job:
    found: resources_pb2.Job = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=10).job
    return found


def quota(stubs: ServiceStubs) -> tuple[int, int, int]:
    found = stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10).burst_buffer
    return found.granted_gb, found.held_gb, found.free_gb


def cancel(stubs: ServiceStubs, job_id: str) -> None:
    stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job_id), timeout=10)
    wait_until(lambda: job(stubs, job_id).state == resources_pb2.JOB_STATE_CANCELLED, SECONDS, f"{job_id} gone")


def kill_job_manager(system: Deployment) -> None:
    """kill -9; `malletrain up` starts the next one."""
    before = system.pids()["job_manager"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: system.pids().get("job_manager", before) != before, SECONDS, "another JobManager")

    def answers() -> Any:
        return system.command("jobs", "--json").returncode == 0

    wait_until(answers, SECONDS, "it answers")


def test_order_bound_and_the_quota_after_a_kill(system: Deployment) -> None:
    stubs = system.stubs
    first = submit(stubs, 2000)
    big = submit(stubs, 4000)
    none = submit(stubs, 0)
    wait_until(lambda: job(stubs, first).state == resources_pb2.JOB_STATE_RUNNING, SECONDS, "the first trains")
    wait_until(lambda: job(stubs, none).state == resources_pb2.JOB_STATE_RUNNING, SECONDS, "nobody else is held up")
    assert job(stubs, big).reason == "waits for 4 TB of burst buffer, 2 TB of 4 TB are free"

    passing = [submit(stubs, 500) for _ in range(BOUND)]
    assert [job(stubs, job_id).admitted for job_id in passing] == [True] * BOUND
    assert job(stubs, big).passed_over == BOUND
    late, other = submit(stubs, 100), submit(stubs, 0)
    assert (job(stubs, late).admitted, job(stubs, other).admitted) == (False, True), "past the bound it comes first"
    assert job(stubs, late).reason_code == resources_pb2.JOB_REASON_BURST_BUFFER
    assert quota(stubs) == (4000, 3000, 1000)

    kill_job_manager(system)
    stubs = system.stubs
    assert quota(stubs) == (4000, 3000, 1000)
    assert [job(stubs, name).admitted for name in (first, big, none, *passing, late)] == [
        True,
        False,
        *[True] * 3,
        False,
    ]
    assert job(stubs, big).passed_over == BOUND
    wait_until(lambda: job(stubs, first).state == resources_pb2.JOB_STATE_RUNNING, SECONDS, "it is found again")
    assert submit(stubs, 50), "one more that fits and is not let in"
    assert quota(stubs)[1] == 3000

    shown = system.command("jobs")
    assert "burst buffer: jobs hold 3 TB of 4 TB, 1 TB are free" in shown.stderr, "beside the rows"
    assert f"behind {big}, which waits for 4 TB" in shown.stdout
    assert "4 TB, not held yet, passed over 2 times" in system.command("job", big).stdout
    assert system.json("jobs", "--owners")["burstBuffer"] == {"grantedGb": 4000, "heldGb": 3000, "freeGb": 1000}
    assert "holds 2000" in system.command("logs", first).stdout
    assert "holds nothing" in system.command("logs", none).stdout

    for job_id in (first, *passing):
        assert not job(stubs, big).admitted
        cancel(stubs, job_id)
    wait_until(lambda: job(stubs, big).admitted, SECONDS, "its turn")
    assert quota(stubs) == (4000, 4000, 0)
    stubs.close()


def test_what_can_not_be_is_refused_and_stores_nothing(system: Deployment) -> None:
    before = len(system.json("jobs"))
    for amount, expected in (("5TB", "--burst-buffer: expected 0 to 4000 GB"), ("-1", "--burst-buffer")):
        done = system.command("submit", "--burst-buffer", amount, "--", "true")
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
    assert len(system.json("jobs")) == before
