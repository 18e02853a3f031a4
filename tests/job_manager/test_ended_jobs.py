"""Jobs end without waiting for Monitor; what it says of them later is theirs all the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.job_manager.machine.progress_buffer import MAX_ENDED_JOBS, EndedJobs
from malletrain.job_manager.machine.stimuli import Cancelled, Completion, Progressed
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.job_manager.harness import MachineHarness, running
from tests.job_manager.serving import ManagerHarness, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.builders import job_spec
from tests.support.postgresql import Locate

ONE = "j000001"


@pytest.fixture
def database(locate: Locate) -> DatabaseAddress:
    return locate("job_manager")


def seen(samples: int, job_id: str = ONE) -> Progressed:
    return Progressed(job_id, samples, stalled=False)


def cancelled(jobs: int = 1) -> MachineHarness:
    machine = MachineHarness()
    machine.submit(*(job_spec() for _ in range(jobs)), owner="ada")
    for number in range(1, jobs + 1):
        machine(Cancelled(f"j{number:06d}", "ada"))
    return machine


def test_what_is_no_news_corrects_nothing() -> None:
    job = cancelled().ended[ONE]
    ended = EndedJobs([job])
    assert ended.corrected(seen(0)) is None
    assert ended.corrected(seen(5, "j000002")) is None
    assert ended.corrected(seen(5)) == replace(job, samples=5)
    assert ended.corrected(seen(5)) is None


def test_the_count_of_a_trainer_that_is_done_stays() -> None:
    machine = running("a")
    machine.end(completion=Completion(7, {}))
    assert machine.ended[ONE].samples == 7
    assert EndedJobs([machine.ended[ONE]]).corrected(seen(640)) is None


def test_jobs_that_train_and_those_that_are_deleted_are_not_meant() -> None:
    ended = EndedJobs([running("a").job(), *cancelled(2).ended.values()])
    ended.forget([2])
    assert ended.corrected(seen(5, "j000002")) is None
    assert ended.corrected(seen(5)) is not None


def test_only_the_last_ones_are_kept() -> None:
    job = cancelled().ended[ONE]
    ended = EndedJobs(replace(job, number=number) for number in range(1, MAX_ENDED_JOBS + 2))
    assert ended.corrected(seen(5)) is None
    assert ended.corrected(seen(5, "j000002")) is not None


def test_the_store_knows_which_ended_last(database: DatabaseAddress) -> None:
    machine = MachineHarness()
    machine.submit(*(job_spec() for _ in range(4)), owner="ada")
    for number in (3, 1, 2):
        machine(Cancelled(f"j{number:06d}", "ada"))
    store = JobStore(open_database(database))
    assert store.last_ended(5) == []
    store.save(Change([*machine.state.jobs.values(), *machine.ended.values()], machine.events))
    assert [job.number for job in store.last_ended(5)] == [3, 1, 2]
    assert [job.number for job in store.last_ended(2)] == [1, 2]


async def end_while_monitor_is_away(harness: ManagerHarness) -> None:
    """The first job ends when 320 of its samples are known."""
    wait = "while [ ! -e go ]; do sleep 0.05; done"
    job_id = await harness.submit("sh", "-c", wait, working_directory=str(harness.state_dir))
    await harness.plan(1, j1="n1")
    await harness.until(job_id, "RUNNING")
    harness.monitor.tell(job_id, 320)
    harness.monitor.is_away = True
    (harness.state_dir / "go").touch()
    assert (await harness.until(job_id, "COMPLETED")).samples == 320


@pytest.mark.processes
async def test_samples_that_come_after_the_end_are_stored_and_told(tmp_path: Path) -> None:
    async with serve_manager(tmp_path / "state", make_python(tmp_path)) as harness:
        await end_while_monitor_is_away(harness)
        stream = harness.stub.WatchJobs(job_manager_pb2.WatchJobsRequest())
        assert (await stream.read()).snapshot
        harness.monitor.tell(ONE, 640)
        told = (await asyncio.wait_for(stream.read(), 10)).jobs
        assert [(job.id, job.samples) for job in told] == [(ONE, 640)]
        stream.cancel()
        job = await harness.job(ONE)
        assert (job.samples, job.state, job.reason) == (640, resources_pb2.JOB_STATE_COMPLETED, "stand-in: EXITED")
        assert job.HasField("end_time")


@pytest.mark.processes
async def test_the_next_job_manager_knows_them_too(tmp_path: Path) -> None:
    python = make_python(tmp_path)
    async with serve_manager(tmp_path / "state", python) as harness:
        await end_while_monitor_is_away(harness)
    async with serve_manager(tmp_path / "state", python) as harness:
        harness.monitor.tell(ONE, 640)
        async with asyncio.timeout(10):
            while (await harness.job(ONE)).samples != 640:
                await asyncio.sleep(0.02)
