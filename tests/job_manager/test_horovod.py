"""With the real supervisor and Elastic Horovod."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from malletrain.common.processes import read_status
from malletrain.v1 import job_manager_pb2
from tests.job_manager.manager_process import manager_process, planned, serving
from tests.job_manager.serving import ManagerHarness, processes_of, serve_manager
from tests.support.waiting import wait_until_async

pytestmark = [
    pytest.mark.long,
    pytest.mark.horovod,
    pytest.mark.timeout(240),
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment"),
]
TRAINER = str(Path(__file__).with_name("trainer.py"))


def workers(state_dir: Path) -> dict[str, int]:
    """Pid of the worker process on each node: the child of the supervisor."""
    found = processes_of(state_dir)
    supervisors = {pid for pid, environment in found.items() if "MALLETRAIN_NODE" not in environment}
    parents = {pid: status.parent for pid in found if (status := read_status(pid))}
    return {
        environment["MALLETRAIN_NODE"]: pid
        for pid, environment in found.items()
        if "MALLETRAIN_NODE" in environment and parents.get(pid) in supervisors
    }


async def test_from_submission_over_a_leave_to_completion(tmp_path: Path) -> None:
    async with serve_manager(tmp_path, Path(sys.executable)) as harness:
        job_id = await harness.submit("python", TRAINER)
        await harness.plan(1, j1="n1 n2 n3")
        await harness.until(job_id, "RUNNING", timeout=60)
        before = workers(tmp_path)
        assert before.keys() == {"n1", "n2", "n3"}
        harness.scavenger.tell(left="n2")
        await harness.until_released(job_id)
        assert workers(tmp_path).keys() <= {"n1", "n3"}
        job = await harness.until(job_id, "RUNNING", timeout=60)
        assert sorted(job.confirmed_nodes) == ["n1", "n3"]
        assert workers(tmp_path) == {node: before[node] for node in ("n1", "n3")}, "survivors keep their pids"
        await harness.plan(2, j1="n1 n3 n4")
        await confirmed(harness, job_id, "n1 n3 n4")
        await harness.plan(3, j1="n4")
        await confirmed(harness, job_id, "n4")
        (tmp_path / "jobs" / job_id / "go").touch()
        job = await harness.until(job_id, "COMPLETED", timeout=60)
        assert job.metrics["batches"] > 0
        assert (job.restarts, job.preemptions) == (0, 1)
        releases = [event.release_seconds for event in await harness.events(job_id) if event.release_seconds]
        assert len(releases) == 1
    assert not processes_of(tmp_path)


async def confirmed(harness: ManagerHarness, job_id: str, nodes: str) -> None:
    await harness.until(job_id, "RUNNING", timeout=60, holds=lambda job: sorted(job.confirmed_nodes) == nodes.split())


async def test_kill_and_adoption_keep_the_workers(tmp_path: Path) -> None:
    async with manager_process(tmp_path, Path(sys.executable)) as (process, caller, _):
        job_id = await caller.submit("python", TRAINER)
        await planned(caller, 1, j1="n1 n2")
        await caller.until(job_id, "RUNNING", timeout=60)
        before = workers(tmp_path)
        process.kill()
        process.start()
        await serving(caller)
        assert (await caller.until(job_id, "RUNNING")).restarts == 0
        assert workers(tmp_path) == before
        await planned(caller, 2, j1="n1")
        await wait_until_async(lambda: workers(tmp_path).keys() == {"n1"}, timeout=60)
        (tmp_path / "jobs" / job_id / "go").touch()
        await caller.until(job_id, "COMPLETED", timeout=60)
    assert not processes_of(tmp_path)


async def test_without_nodes_the_supervisor_stays_and_outlives_a_kill_of_job_manager(tmp_path: Path) -> None:
    async with manager_process(tmp_path, Path(sys.executable)) as (process, caller, scavenger):
        job_id = await caller.submit("python", TRAINER)

        def supervisor() -> int:
            return int(json.loads((tmp_path / "jobs" / job_id / "supervisor.json").read_text())["pid"])

        await planned(caller, 1, j1="n1 n2")
        await caller.until(job_id, "RUNNING", timeout=60)
        first = supervisor()
        await planned(caller, 2, j1="")
        await caller.until(job_id, "WAITING")
        assert processes_of(tmp_path).keys() == {first}, "no worker is left"
        process.kill()
        process.start()
        await serving(caller)
        await planned(caller, 3, j1="n3")
        await caller.until(job_id, "RUNNING", timeout=60)
        assert (supervisor(), workers(tmp_path).keys()) == (first, {"n3"})
        scavenger.tell(left="n3")
        job = await caller.until(job_id, "WAITING")
        assert (processes_of(tmp_path).keys(), job.preemptions) == ({first}, 1)
        await planned(caller, 4, j1="n4")
        await caller.until(job_id, "RUNNING", timeout=60)
        assert supervisor() == first
        await planned(caller, 5, j1="")
        await caller.until(job_id, "WAITING")
        os.kill(first, signal.SIGKILL)
        await planned(caller, 6, j1="n1")
        job = await caller.until(job_id, "RUNNING", timeout=60)
        assert (supervisor() != first, job.restarts) == (True, 0)
        await planned(caller, 7, j1="")
        await caller.until(job_id, "WAITING")
        await caller.stub.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job_id))
        await caller.until(job_id, "CANCELLED")
        assert not processes_of(tmp_path)
