"""A job that is to start while the disk of its folder is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.common.files import is_full
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.job_manager.machine.stimuli import Outcome, SupervisorEnded
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.v1 import resources_pb2
from tests.job_manager.harness import MachineHarness, running
from tests.job_manager.serving import serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.builders import job_spec
from tests.support.waiting import wait_until_async

FULL = "the disk of the job's folder is full"


def refused(machine: MachineHarness) -> None:
    """There is no room for what its supervisor is started with."""
    job = machine.job()
    machine(SupervisorEnded(job.id, job.incarnation, Outcome.FAILED, FULL, None, (), no_room=True))


def test_it_is_tried_again_after_a_while_and_that_is_no_failure() -> None:
    machine = MachineHarness()
    machine.idle("a")
    machine.submit(job_spec(max_restarts=0))
    for _ in range(5):
        machine.plan(j1="a")
        refused(machine)
        job = machine.job()
        assert (job.state, job.reason_code) == (JobState.WAITING, JobReason.START_POSTPONED)
        assert job.reason == f"could not be started, tried again in 30 s: {FULL}"
        assert (job.wanted, job.held, job.restarts, job.counted_failures) == ((), (), 0, 0)
        machine.wait(29.0)
        assert machine.job().not_before is not None
        machine.wait(1.0)
        assert machine.job().not_before is None


def test_a_job_that_is_stopped_meanwhile_waits_as_ever() -> None:
    machine = running("a")
    machine.plan(j1="")
    refused(machine)
    assert machine.job().reason == "waits for nodes (plan 2: no nodes)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_takes_no_more_files_is_full(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=20", small_disk], check=True)
    found = [is_full(small_disk)]
    with contextlib.suppress(OSError):
        for number in range(20):
            (small_disk / str(number)).touch()
    found.append(is_full(small_disk))
    (small_disk / "0").unlink()
    found.append(is_full(small_disk))
    assert found == [False, True, False]


@pytest.mark.parametrize(("files", "free", "full"), [(0, 0, False), (10, 0, True), (10, 1, False)])
def test_a_limit_of_files_counts_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, free: int, full: bool
) -> None:
    answer = os.statvfs_result((4096, 4096, 10, 10, 10, files, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    assert is_full(tmp_path) is full


def fill(folder: Path) -> Path:
    """Use the last byte of a file system; the file that has it."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return path


def test_a_supervisor_that_could_not_write_what_it_had_to_say(small_disk: Path) -> None:
    folder = JobFolder(small_disk / "j000001")
    folder.prepare()
    found = [folder.has_failed_for_room]
    filler = fill(small_disk)
    assert is_full(small_disk)
    found.append(folder.has_failed_for_room)
    filler.unlink()
    found.append(folder.has_failed_for_room)
    assert found == [False, True, False]


@pytest.mark.system
async def test_the_disk_is_full_for_a_while(tmp_path: Path, small_disk: Path) -> None:
    settings = {"jobs_dir": small_disk / "jobs", "restart_backoff_max_seconds": 1.0}
    async with serve_manager(tmp_path / "state", make_python(tmp_path), **settings) as harness:
        filler, engine = fill(small_disk), harness.manager.engine
        job_id = await harness.submit(max_restarts=0)
        for generation in (1, 2, 3):
            await harness.plan(generation, j1="n1")
            await wait_until_async(lambda: engine.state.jobs[job_id].reason_code is JobReason.START_POSTPONED)
            job = await harness.job(job_id)
            assert job.state == resources_pb2.JOB_STATE_WAITING
            assert os.strerror(28) in job.reason
            await wait_until_async(lambda: engine.state.jobs[job_id].not_before is None)
        filler.unlink()
        await harness.plan(4, j1="n1")
        job = await harness.until(job_id, "RUNNING")
        assert job.restarts == 0
