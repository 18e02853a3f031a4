"""The cgroups of supervisors, and what the record of a launch may name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from malletrain.common.cgroups import Cgroup, Cgroups, open_cgroups
from malletrain.job_manager.launching.job_cgroups import JobCgroups, folder_name


def nowhere(_: str, say: Callable[[str], None]) -> Cgroups:
    return Cgroups(None, say, "not here")


async def test_without_cgroups_all_goes_on(tmp_path: Path) -> None:
    groups = JobCgroups(tmp_path, nowhere)
    assert groups.make("j000001", 1, None) is None
    await groups.end("j000001", 1, "/sys/fs/cgroup")
    await groups.end_others(tuple)
    groups.close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Path]:
    found = open_cgroups(folder_name(tmp_path), print)
    if found.folder is None:
        pytest.skip(f"this machine lets nobody make cgroups here: {found.reason}")
    yield tmp_path
    for name in found.names():
        found.end(name, 5.0)
    found.remove_all()


def sleeping(group: Cgroup | None) -> subprocess.Popen[bytes]:
    assert group is not None
    process = subprocess.Popen(["/bin/sleep", "600"])
    group.add(process.pid)
    return process


async def test_an_incarnation_ends_with_its_cgroup_and_the_next_one_goes_on(jobs: Path) -> None:
    groups = JobCgroups(jobs)
    first, second = (sleeping(groups.make("j000001", number, None)) for number in (1, 2))
    await groups.end("j000001", 1)
    assert first.wait(10) == -9
    assert second.poll() is None
    groups.close()
    await groups.end_others(lambda: ["j000001"])
    assert second.poll() is None
    await JobCgroups(jobs).end_others(lambda: ["j000002"])
    assert second.wait(10) == -9
    groups.close()
    assert open_cgroups(folder_name(jobs), print).names() == []


async def test_a_record_leads_to_cgroups_of_this_job_only(jobs: Path, tmp_path: Path) -> None:
    """An earlier JobManager may have been in another cgroup; and the record may be the job's own file."""
    here = open_cgroups(folder_name(jobs), print).folder
    assert here is not None
    elsewhere = here.parent / f"malletrain-tests-{folder_name(jobs)}"
    earlier = Cgroup(elsewhere / folder_name(jobs) / "j000001.1" / "own")
    other = Cgroup(elsewhere / folder_name(jobs) / "j000002.1" / "own")
    for group in (earlier, other):
        group.folder.mkdir(parents=True)
    processes = [sleeping(earlier), sleeping(other)]
    groups = JobCgroups(jobs)
    try:
        for false in (f"{other.folder}", f"{earlier.folder}/../../j000002.1/own", "relative/own", "", 7, f"{tmp_path}"):
            await groups.end("j000001", 1, false)
        assert [process.poll() for process in processes] == [None, None]
        await groups.end("j000001", 1, str(earlier.folder))
        assert processes[0].wait(10) == -9
        assert processes[1].poll() is None
        assert not earlier.folder.parent.exists()
    finally:
        Cgroup(elsewhere).end(10.0)
        for process in processes:
            process.wait(10)
