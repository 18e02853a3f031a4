"""Fleets over gRPC: with a supervisor that confirms at once, and with real ones that train on one node."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from malletrain.job_manager.launching.folder import JobFolder
from malletrain.v1 import fleet_pb2, resources_pb2
from malletrain.v1 import job_manager_pb2 as pb
from tests.job_manager.manager_process import manager_process, planned, serving
from tests.job_manager.serving import Caller, ManagerHarness, processes_of, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.builders import spec_message
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

PLAIN = str(Path(__file__).parent.parent / "supervisor" / "plain_trainer.py")
ELASTIC = str(Path(__file__).parent.parent / "supervisor" / "trainer.py")
FLEET = fleet_pb2.FleetSpec(name="pair", max_nodes=2, gpus_per_node=2, samples_per_epoch=10.0)


def members(*command: str, names: str = "a b", **changes: Any) -> list[resources_pb2.JobSpec]:
    return [spec_message(*command, name=name, fleet=FLEET, **changes) for name in names.split()]


async def submit(caller: Caller, specs: list[resources_pb2.JobSpec]) -> list[str]:
    response = await caller.stub.SubmitJobs(pb.SubmitJobsRequest(specs=specs))
    return [job.id for job in response.jobs]


def on_gpus(state_dir: Path) -> dict[str, set[int]]:
    """Processes by the GPU that they are marked with."""
    found: dict[str, set[int]] = {}
    for pid, environment in processes_of(state_dir).items():
        if name := environment.get("MALLETRAIN_NODE"):
            found.setdefault(name, set()).add(pid)
    return found


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagerHarness]:
    section: dict[str, Any] = {"restart_backoff_seconds": 0.05, "reconcile_seconds": 0.05}
    async with serve_manager(tmp_path / "state", make_python(tmp_path), "n1 n2 g3", **section) as found:
        yield found
    assert not processes_of(tmp_path)


async def test_members_run_on_the_gpus_of_shared_nodes_which_leave_together(harness: ManagerHarness) -> None:
    first, second = await submit(harness, members())
    job = await harness.job(first)
    assert (job.fleet_id, job.spec.fleet.name, job.spec.fleet.rate_tolerance) == ("f000001", "pair", 0.11)
    await harness.plan(1, j1="n1#0 n2#0", j2="n1#1")
    for job_id in (first, second):
        await harness.until(job_id, "RUNNING")
    before = on_gpus(harness.state_dir)
    assert before.keys() == {"n1#0", "n1#1", "n2#0"}
    marks = {
        found["MALLETRAIN_NODE"]: found
        for found in processes_of(harness.state_dir).values()
        if "MALLETRAIN_NODE" in found
    }
    assert {(found["MALLETRAIN_SLOTS_PER_NODE"], found["MALLETRAIN_NODE_GPUS"]) for found in marks.values()} == {
        ("1", "2")
    }

    await harness.plan(2, j1="n2#0")
    await wait_until_async(lambda: "n1#0" not in on_gpus(harness.state_dir))
    assert list((await harness.until(first, "RUNNING")).confirmed_nodes) == ["n2#0"]
    assert on_gpus(harness.state_dir) == {name: before[name] for name in ("n1#1", "n2#0")}

    await harness.plan(3, j1="n2#0 n1#0")
    await harness.until(first, "RUNNING")
    released = await harness.stub.ReleaseNodes(pb.ReleaseNodesRequest(nodes=["n1"]), timeout=20)
    assert list(released.released) == ["n1"]
    assert on_gpus(harness.state_dir) == {"n2#0": before["n2#0"]}
    assert list((await harness.until(second, "WAITING")).commanded_nodes) == []
    taken = [event for event in await harness.events(second) if event.reason.startswith("preempted: n1#1 left")]
    assert taken

    await harness.stub.CancelJob(pb.CancelJobRequest(job_id=first))
    await harness.until(first, "CANCELLED")
    assert (await harness.job(second)).state == resources_pb2.JOB_STATE_WAITING


async def test_a_member_whose_command_exits_at_once_fails_alone(harness: ManagerHarness) -> None:
    specs = [*members("sh", "-c", "exit 3", names="bad", max_restarts=0), *members(names="good")]
    bad, good = await submit(harness, specs)
    await harness.plan(1, j1="g3#0", j2="g3#1")
    await harness.until(good, "RUNNING")
    before = on_gpus(harness.state_dir)["g3#1"]
    await harness.until(bad, "FAILED")
    assert on_gpus(harness.state_dir) == {"g3#1": before}
    await harness.plan(2, j2="g3#1 g3#0")
    assert list((await harness.until(good, "RUNNING")).confirmed_nodes) == ["g3#1", "g3#0"]


async def test_what_is_no_fleet_or_no_gpu_is_refused_as_a_whole(harness: ManagerHarness) -> None:
    for specs, field in [
        (members(names="a a"), r"specs\[1\]\.name: expected another name"),
        ([*members(), spec_message()], r"specs\[2\]\.fleet: expected a fleet in all specs"),
        (members(max_nodes=5), r"specs\[0\]\.max_nodes: expected at most 4"),
    ]:
        with pytest.raises(grpc.aio.AioRpcError, match=field) as caught:
            await submit(harness, specs)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not (await harness.stub.ListJobs(pb.ListJobsRequest())).jobs
    await submit(harness, members())
    for name in ("n1#", "n1#x", "n1#01", "n1#-1", "#0", "n1#0#1", "n1#10000"):
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"assignments\[0\]\.nodes\[0\]: expected the name of a node, or of a"
        ) as caught:
            await harness.plan(1, j1=name)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for name in ("n1", "n1#2", "g3#1023"):
        with pytest.raises(grpc.aio.AioRpcError, match="expected GPUs") as caught:
            await harness.plan(1, j1=name)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.system
async def test_members_are_found_again_after_a_kill_of_job_manager(tmp_path: Path) -> None:
    async with manager_process(tmp_path / "state", make_python(tmp_path)) as (process, caller, scavenger):
        first, second = await submit(caller, members())
        await planned(caller, 1, j1="n1#0 n2#0", j2="n1#1")
        for job_id in (first, second):
            await caller.until(job_id, "RUNNING")
        before = on_gpus(process.state_dir)
        process.kill()
        scavenger.tell(left="n2")
        assert on_gpus(process.state_dir) == before
        process.start()
        await serving(caller)
        await wait_until_async(lambda: "n2#0" not in on_gpus(process.state_dir))
        jobs = [await caller.until(job_id, "RUNNING") for job_id in (first, second)]
        assert [(job.fleet_id, job.restarts, list(job.confirmed_nodes)) for job in jobs] == [
            ("f000001", 0, ["n1#0"]),
            ("f000001", 0, ["n1#1"]),
        ]
        assert on_gpus(process.state_dir) == {name: before[name] for name in ("n1#0", "n1#1")}
        with pytest.raises(grpc.aio.AioRpcError, match="is job j000002's"):
            await caller.plan(2, j1="n1#0 n1#1")


def steps(state_dir: Path, job_id: str) -> int:
    """Batches that a job's workers have noted."""
    notes = (state_dir / "jobs" / job_id).glob("notes-*.jsonl")
    return sum(json.loads(line)["event"] == "batch" for path in notes for line in path.read_text().splitlines()[:-1])


def logs(state_dir: Path, job_id: str) -> set[str]:
    return {path.name for path in JobFolder(state_dir / "jobs" / job_id).logs.glob("*.log")}


async def trains_on(state_dir: Path, job_id: str) -> None:
    before = steps(state_dir, job_id)
    await wait_until_async(lambda: steps(state_dir, job_id) > before + 5, timeout=60, what=f"batches of {job_id}")


BACKENDS = [
    pytest.param("TORCHRUN", PLAIN, marks=pytest.mark.training),
    pytest.param(
        *("HOROVOD", ELASTIC),
        marks=[
            pytest.mark.horovod,
            pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment"),
        ],
    ),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("backend", "script"), BACKENDS)
async def test_a_gpu_of_one_member_is_taken_and_the_other_one_trains_on(
    tmp_path: Path, backend: str, script: str
) -> None:
    value = resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{backend}")
    async with manager_process(tmp_path, Path(sys.executable)) as (process, caller, scavenger):
        one, other = await submit(caller, members("python", script, backend=value))
        await planned(caller, 1, j1="n1#0 n2#0", j2="n1#1")
        for job_id in (one, other):
            await caller.until(job_id, "RUNNING", timeout=90)
        before = on_gpus(tmp_path)
        await asyncio.gather(trains_on(tmp_path, one), trains_on(tmp_path, other))

        await caller.plan(2, j1="n2#0")  # a GPU of a node that both use
        await wait_until_async(lambda: "n1#0" not in on_gpus(tmp_path), timeout=60)
        process.kill()
        process.start()
        await serving(caller)
        await caller.until(one, "RUNNING", timeout=90)
        await asyncio.gather(trains_on(tmp_path, one), trains_on(tmp_path, other))
        assert on_gpus(tmp_path)["n1#1"] >= before["n1#1"]
        if backend == "HOROVOD":
            assert on_gpus(tmp_path)["n2#0"] >= before["n2#0"], "the survivor goes on in its process"

        scavenger.tell(left="n2")
        await caller.until(one, "WAITING", timeout=60)
        await trains_on(tmp_path, other)
        assert on_gpus(tmp_path).keys() == {"n1#1"}
        assert on_gpus(tmp_path)["n1#1"] >= before["n1#1"], "the other member has not been touched"
        assert logs(tmp_path, one) >= {"n1#0.0.log", "n2#0.0.log"}
        found = [environment for environment in processes_of(tmp_path).values() if "MALLETRAIN_NODE" in environment]
        assert {environment["CUDA_VISIBLE_DEVICES"] for environment in found} == {"1"}
        assert [(await caller.job(job_id)).restarts for job_id in (one, other)] == [0, 0]
    assert not processes_of(tmp_path)
