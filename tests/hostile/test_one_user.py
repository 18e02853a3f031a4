"""One user, within all limits, blinds nobody: snapshots and pages are bounded, and so is what an owner's jobs take."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import allocator_pb2, job_manager_pb2, resources_pb2
from tests.hostile.floods import ENVIRONMENT_BYTES, MIB, PER_SUBMISSION, large, spec
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

JOBS = 620
NODES = '[scavenger]\nsource = "static"\nnodes = ["n1", "n2"]\ndebounce_seconds = 0\n'


@contextlib.contextmanager
def of_mallory(system: Deployment) -> Iterator[ServiceStubs]:
    token = system.command("token", "--user", "mallory", "--role", "user").stdout.strip()
    with contextlib.closing(ServiceStubs(load(system.config), FixedToken(token))) as stubs:
        yield stubs


def database_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("job_manager*") if path.is_file())


def memory(system: Deployment) -> dict[str, int]:
    return {name: psutil.Process(pid).memory_info().rss // MIB for name, pid in system.pids().items()}


def test_large_jobs_blind_nobody(tmp_path: Path) -> None:
    """620 jobs with environments of 120 KB: their snapshot had 73 MiB, more than any reader takes."""
    settings = f"{NODES}[job_manager]\nmax_parallel = 2\nmax_submissions_per_second = 1000\n"
    with deployed(tmp_path / "up", settings) as system, of_mallory(system) as mallory:
        # What the services load for any job is no part of what mallory's take: the solver has 130 MiB on two cores.
        mallory.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec("first")]), timeout=60)
        plan_in_a_new_process(system, 1)
        before = memory(system)
        print("before:", before)
        for begin in range(0, JOBS, PER_SUBMISSION):
            specs = [large(f"m{begin + index}") for index in range(PER_SUBMISSION)]
            mallory.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=specs), timeout=60)
        plan_in_a_new_process(system, 2)
        page = mallory.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=30)
        assert page.ByteSize() < 5 * MIB
        assert page.next_page_token
        listed = system.json("jobs")
        assert len(listed) == JOBS + 1 if isinstance(listed, list) else len(listed["jobs"]) == JOBS + 1
        after = memory(system)
        print("after:", after)
        assert all(size < before[name] + 128 for name, size in after.items() if name != "job_manager")
        wait_until(lambda: memory(system)["job_manager"] < before["job_manager"] + 200, 60, "what it took to list them")
        print("then:", memory(system))


def plan_in_a_new_process(system: Deployment, jobs: int) -> None:
    """Kill the Allocator and wait until another one has made a plan of so many jobs."""
    pid, generation = system.pids()["allocator"], newest_plan(system).generation
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: system.pids().get("allocator") not in (None, pid), 30, "another Allocator")

    def planned() -> bool:
        plan = newest_plan(system)
        return plan.generation > generation and len(plan.problem.jobs) == jobs

    wait_until(planned, 60, f"a plan of {jobs} jobs")


def newest_plan(system: Deployment) -> allocator_pb2.Plan:
    """Without a generation where the Allocator does not answer."""
    with contextlib.closing(system.stubs) as stubs:
        try:
            return stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5).plan
        except grpc.RpcError:
            return allocator_pb2.Plan()


def test_what_an_owner_has_submitted_and_cancelled_is_bounded(tmp_path: Path) -> None:
    """Jobs that are cancelled at once filled the disk, and were kept for 90 days."""
    settings = f"{NODES}[job_manager]\nmax_mib_per_owner = 4\n"
    with deployed(tmp_path / "up", settings) as system, of_mallory(system) as mallory:
        refused = accepted = 0
        while refused < 1 or accepted < 60:
            try:
                request = job_manager_pb2.SubmitJobsRequest(specs=[large("m")])
                job = mallory.job_manager.SubmitJobs(request, timeout=60).jobs[0]
            except grpc.RpcError as error:
                refused += "max_mib_per_owner" in str(error.details())
                continue
            accepted += 1
            mallory.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job.id), timeout=60)
        size = database_bytes(tmp_path / "up")
        print(f"{accepted} jobs of {ENVIRONMENT_BYTES} bytes accepted, {refused} refused: {size / MIB:.1f} MiB")
        assert MIB < size < 16 * MIB
        with contextlib.closing(system.stubs) as others:
            request = job_manager_pb2.SubmitJobsRequest(specs=[large("of somebody else")])
            others.job_manager.SubmitJobs(request, timeout=60)


def test_public_lists_of_a_job_are_bounded(tmp_path: Path) -> None:
    with deployed(tmp_path / "up", NODES) as system, of_mallory(system) as mallory:
        many = range(1, 30_000)
        curve = [resources_pb2.ScalingPoint(nodes=nodes, rate=1.0) for nodes in range(1, 2000)]
        for attack in (spec("m", permitted_nodes=many), spec("m", curve=curve)):
            with pytest.raises(grpc.RpcError) as caught:
                mallory.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[attack]), timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
