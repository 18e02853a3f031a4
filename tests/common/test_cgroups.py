"""cgroups: what /proc says of them, names, and what happens where they are not as expected."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from malletrain.common.cgroups import (
    Cgroup,
    Cgroups,
    find_folder,
    group_name,
    is_of_batch_scheduler,
    open_cgroups,
    parse_membership,
    parse_mounts,
)

UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:2 - cgroup2 cgroup2 rw\n"
)
CONTAINER = r"50 49 0:26 /docker/ab /sys/fs/with\040space ro - cgroup2 cgroup ro" + "\n"


def test_mounts() -> None:
    root = PurePosixPath("/")
    assert list(parse_mounts(UNIFIED)) == [(root, Path("/sys/fs/cgroup"))]
    assert list(parse_mounts(HYBRID)) == [(root, Path("/sys/fs/cgroup/unified"))]
    assert list(parse_mounts(CONTAINER)) == [(PurePosixPath("/docker/ab"), Path("/sys/fs/with space"))]
    assert list(parse_mounts("nonsense\n1 - cgroup2\n")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/\n", "/"),
        ("9:name=systemd:/x\n0::/system.slice/malletrain.service\n", "/system.slice/malletrain.service"),
        ("0::/user.slice/x (deleted)\n", None),
        ("0::/../other\n", None),
        ("8:pids:/\n", None),
        ("", None),
    ],
)
def test_membership(text: str, found: str | None) -> None:
    assert parse_membership(text) == (None if found is None else PurePosixPath(found))


@pytest.mark.parametrize(
    ("mountinfo", "membership", "folder"),
    [
        (UNIFIED, "0::/a.slice/b.service\n", "/sys/fs/cgroup/a.slice/b.service"),
        (HYBRID, "0::/\n", "/sys/fs/cgroup/unified"),
        (CONTAINER, "0::/docker/ab/inner\n", "/sys/fs/with space/inner"),
        (CONTAINER, "0::/elsewhere\n", None),
        ("", "0::/\n", None),
    ],
)
def test_the_folder_of_a_process(mountinfo: str, membership: str, folder: str | None) -> None:
    assert find_folder(mountinfo, membership) == (None if folder is None else Path(folder))


@pytest.mark.parametrize(
    ("folder", "theirs"),
    [
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0", True),
        ("/sys/fs/cgroup/system.slice/n1_slurmstepd.scope/job_7", True),
        ("/sys/fs/cgroup/pbs_jobs.service/jobid/7.head", True),
        ("/sys/fs/cgroup/system.slice/slurmd.service", False),
        ("/sys/fs/cgroup/system.slice/malletrain@job_manager.service", False),
        ("/sys/fs/cgroup", False),
    ],
)
def test_cgroups_of_batch_schedulers(folder: str, theirs: bool) -> None:
    assert is_of_batch_scheduler(Path(folder)) is theirs


def test_names_are_plain_short_and_different() -> None:
    assert group_name("j000001", 3) == "j000001.3"
    odd = [group_name(*words) for words in (("a", "b/../c"), ("a.b", "c"), ("a", "b.c"), ("x" * 300,), ("..",), ("",))]
    assert len({*odd, "a.b.c"}) == 7
    assert all(len(name) <= 100 and "/" not in name and not name.startswith(".") for name in odd)


def fake(above: Path) -> Path:
    """A folder that looks like a cgroup to who reads it; what is made in it is none."""
    for name in ("cgroup.procs", "cgroup.kill"):
        (above / name).touch()
    return above


def test_without_a_cgroup_there_are_none_and_nothing_fails(tmp_path: Path) -> None:
    def missing() -> Path:
        raise OSError("cgroup v2 is not mounted here")

    said: list[str] = []
    for above, reason in ((missing, "cgroup v2 is not mounted here"), (lambda: fake(tmp_path), "No such file")):
        groups = open_cgroups("malletrain-x", said.append, above)
        assert groups.folder is None
        assert reason in groups.reason
        assert groups.make("j1.1") is None
        assert groups.find("j1.1") is None
        assert groups.names() == []
        groups.end("j1.1", 1.0)
        groups.kill_all()
        groups.remove_all()
    assert said == []
    assert not (tmp_path / "malletrain-x").exists(), "what was tried has been removed"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_one_that_belongs_to_somebody_else_is_not_used(tmp_path: Path) -> None:
    fake(tmp_path).joinpath("cgroup.procs").chmod(0o400)
    assert "Permission denied" in open_cgroups("x", print, lambda: tmp_path).reason


def test_what_can_not_be_done_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    groups = Cgroups(tmp_path / "file", said.append)
    assert groups.make("a") is None
    assert groups.make("b") is None
    assert len(said) == 1
    group = Cgroups(tmp_path, said.append).make("c")
    assert group is not None
    with pytest.raises(FileNotFoundError):
        group.add(os.getpid())
    assert not group.kill()
    assert group.end(0.0)
    assert not group.folder.exists()


@pytest.fixture
def real() -> Iterator[Cgroups]:
    groups = open_cgroups(f"malletrain-tests-{os.getpid()}", print)
    if groups.folder is None:
        pytest.skip(f"this machine lets nobody make cgroups here: {groups.reason}")
    yield groups
    for name in groups.names():
        groups.end(name, 5.0)
    groups.remove_all()


def test_all_in_one_end_and_those_in_another_do_not(real: Cgroups) -> None:
    one, other = real.make("one"), real.make("other")
    assert one is not None
    assert other is not None
    shell = "sleep 600 & setsid sleep 600 & wait"
    processes = [subprocess.Popen(["/bin/sh", "-c", f"read go; {shell}"], stdin=subprocess.PIPE) for _ in range(2)]
    for group, process in zip((one, other), processes, strict=True):
        group.add(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert real.names() == ["one", "other"]
    real.end("one", 10.0)
    assert processes[0].wait(10) == -9
    assert (one.folder.exists(), other.has_processes, processes[1].poll()) == (False, True, None)
    below = Cgroup(other.folder / "below")
    below.folder.mkdir()
    below.add(processes[1].pid)
    real.kill_all()
    assert processes[1].wait(10) == -9
