"""kill -9 of JobManager at any point: jobs go on, nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from malletrain.job_manager.launching import processes
from malletrain.v1 import job_manager_pb2 as pb
from tests.job_manager.manager_process import ManagerProcess, manager_process, planned, serving
from tests.job_manager.serving import processes_of
from tests.job_manager.stand_in import make_python
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.long]


def pids(state_dir: Path, node: str | None) -> set[int]:
    return {pid for pid, found in processes_of(state_dir).items() if found.get("MALLETRAIN_NODE") == node}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagerProcess]:
    async with manager_process(tmp_path / "state", make_python(tmp_path)) as found:
        yield found
    assert not processes_of(tmp_path), "an end in good order leaves no process"


async def test_running_jobs_are_found_again(harness: ManagerProcess) -> None:
    process, caller, scavenger = harness
    job_id = await caller.submit()
    await planned(caller, 1, j1="n1 n2 n3")
    await caller.until(job_id, "RUNNING")
    before = processes_of(process.state_dir).keys()
    (used,) = (await caller.stub.ListOwners(pb.ListOwnersRequest())).owners
    process.kill()
    assert processes_of(process.state_dir).keys() == before
    process.start()
    await serving(caller)
    job = await caller.job(job_id)
    assert list(job.confirmed_nodes) == ["n1", "n2", "n3"]
    assert job.restarts == 0
    (owner,) = (await caller.stub.ListOwners(pb.ListOwnersRequest())).owners
    assert (owner.nodes, owner.weight) == (3, 1.0)
    assert owner.used_node_seconds > used.used_node_seconds, "they were held meanwhile, too"
    scavenger.tell(left="n2")
    await wait_until_async(lambda: not pids(process.state_dir, "n2"))
    await caller.until(job_id, "RUNNING")
    assert pids(process.state_dir, "n1") < set(before)
    with pytest.raises(grpc.aio.AioRpcError, match="expected above 1"):
        await caller.plan(1, j1="")


async def test_what_happened_while_it_was_down(harness: ManagerProcess) -> None:
    process, caller, scavenger = harness
    done = "trap 'exit 0' TERM; while [ ! -e $MALLETRAIN_JOB_DIR/go ]; do sleep 0.02; done; "
    done += 'echo \'{"metrics": {"loss": 1}}\' > $MALLETRAIN_JOB_DIR/completed.json'
    ending, shrinking = await caller.submit("sh", "-c", done), await caller.submit()
    await planned(caller, 1, j1="n1", j2="n2 n3")
    await caller.until(ending, "RUNNING")
    await caller.until(shrinking, "RUNNING")
    process.kill()
    (process.state_dir / "jobs" / ending / "go").touch()
    scavenger.tell(left="n3")
    await wait_until_async(lambda: not pids(process.state_dir, "n1"))
    process.start()
    await serving(caller)
    assert dict((await caller.until(ending, "COMPLETED")).metrics) == {"loss": 1}
    await wait_until_async(lambda: not pids(process.state_dir, "n3"))
    assert list((await caller.until(shrinking, "RUNNING")).commanded_nodes) == ["n2"]


async def test_a_program_that_ended_well_while_it_was_down(harness: ManagerProcess) -> None:
    process, caller, _ = harness
    job_id = await caller.submit("sh", "-c", "while [ ! -e $MALLETRAIN_JOB_DIR/go ]; do sleep 0.02; done")
    await planned(caller, 1, j1="n1")
    await caller.until(job_id, "RUNNING")
    process.kill()
    (process.state_dir / "jobs" / job_id / "go").touch()
    await wait_until_async(lambda: not pids(process.state_dir, None), what="the supervisor's end")
    process.start()
    await serving(caller)
    job = await caller.until(job_id, "COMPLETED")
    assert (job.restarts, job.reason) == (0, "stand-in: EXITED")


async def test_a_job_is_never_started_twice(harness: ManagerProcess) -> None:
    """Killed again and again around the start: in the end there is one supervisor and one worker."""
    process, caller, _ = harness
    job_id = await caller.submit()
    await planned(caller, 1, j1="n1")
    for _ in range(4):
        process.kill()
        process.start()
        await serving(caller)
    job = await caller.until(job_id, "RUNNING")
    assert job.restarts == 0
    assert len(pids(process.state_dir, "n1")) == len(pids(process.state_dir, None)) == 1


async def test_supervisor_that_died_meanwhile(harness: ManagerProcess) -> None:
    process, caller, _ = harness
    job_id = await caller.submit()
    await planned(caller, 1, j1="n1")
    await caller.until(job_id, "RUNNING")
    process.kill()
    mine = str(process.state_dir)
    await processes.sweep(lambda found: found.get("MALLETRAIN_JOB_DIR", "").startswith(mine))
    process.start()
    await serving(caller)
    job = await caller.until(job_id, "WAITING")
    assert job.restarts == 1


async def test_strays_of_jobs_without_a_supervisor_are_ended(harness: ManagerProcess) -> None:
    process, caller, _ = harness
    job_id = await caller.submit()
    process.kill()
    folder = str(process.state_dir / "jobs" / job_id)
    stray = subprocess.Popen(["sleep", "60"], env={"MALLETRAIN_JOB_DIR": folder, "PATH": "/bin:/usr/bin"})
    process.start()
    await wait_until_async(lambda: stray.poll() is not None)


HELD_RECORDS = """
import pathlib, time
from malletrain.job_manager.storage.store import JobStore
save = JobStore.save
def held(self, change):
    while pathlib.Path(FILE).exists():
        time.sleep(0.01)
    save(self, change)
JobStore.save = held
"""


async def test_nodes_are_released_before_that_is_stored_and_given_only_after(tmp_path: Path) -> None:
    """The disk hangs: a plan waits for its record, a release does not. Then JobManager is killed."""
    hold = tmp_path / "hold"
    async with manager_process(tmp_path / "state", make_python(tmp_path)) as (process, caller, scavenger):
        process.kill()
        process.fault = HELD_RECORDS.replace("FILE", repr(str(hold)))
        process.start()
        await serving(caller)
        job_id = await caller.submit()
        await planned(caller, 1, j1="n1 n2")
        await caller.until(job_id, "RUNNING")
        hold.touch()
        try:
            planning = asyncio.create_task(caller.plan(2, j1="n1 n2 n3"))
            async with asyncio.timeout(10):
                while "n3" not in (await caller.job(job_id)).wanted_nodes:
                    await asyncio.sleep(0.01)
            scavenger.tell(left="n2")
            await wait_until_async(lambda: not pids(process.state_dir, "n2"))
            assert not planning.done()
            assert not pids(process.state_dir, "n3"), "what gives nodes waits"
        finally:
            process.kill()
            hold.unlink()
        with pytest.raises(grpc.aio.AioRpcError):
            await planning
        process.start()
        await serving(caller)
        await wait_until_async(lambda: pids(process.state_dir, "n1"))
        await caller.until(job_id, "RUNNING")
        job = await caller.job(job_id)
        assert (list(job.commanded_nodes), job.plan_generation) == (["n1"], 1), "the plan was never stored"
        assert not pids(process.state_dir, "n3")
        await caller.plan(2, j1="n1 n3")
        await wait_until_async(lambda: pids(process.state_dir, "n3"))
    assert not processes_of(tmp_path)
