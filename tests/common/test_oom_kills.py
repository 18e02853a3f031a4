"""Kills for want of memory are known by the kernel's counters."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.common.oom_kills import OomKills, may_be_for_memory, oom_counters
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/job_7", "sys/fs/cgroup/job_7/memory.events"),
        ("4:memory:/job_7", "sys/fs/cgroup/memory/job_7/memory.oom_control"),
        ("", "proc/vmstat"),
    ],
)
def test_a_counter_that_grows_is_noticed_for_a_while(tmp_path: Path, cgroup: str, file: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{cgroup}\n")
    counter = tmp_path / file
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("oom 9\noom_kill 3\nother 1\n")
    kills = OomKills(oom_counters(tmp_path))
    assert not kills.recent(100.0), "those of before do not count"
    counter.write_text("oom 9\noom_kill 4\nother 1\n")
    kills.look(101.0)
    assert kills.recent(111.0)
    assert not kills.recent(111.5)


def test_without_counters_nothing_is_claimed(tmp_path: Path) -> None:
    assert not OomKills(oom_counters(tmp_path)).recent(0.0)


def test_which_ends_may_be_for_memory() -> None:
    assert [may_be_for_memory(code) for code in (-signal.SIGKILL, 137, 1, 0, -signal.SIGTERM)] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory cgroup with a limit of 64 MB; skipped where none may be made."""
    version_1 = Path("/sys/fs/cgroup/memory")
    root, limit = (version_1, "limit_in_bytes") if version_1.is_dir() else (Path("/sys/fs/cgroup"), "max")
    group = root / f"malletrain-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / f"memory.{limit}").write_text(str(64 << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, "the end of the group's processes")
    group.rmdir()


def test_a_kill_by_the_kernel(memory_group: Path) -> None:
    eats = "held = bytearray(b'x' * (256 << 20))"
    script = f"""
import os, subprocess, sys, time
from pathlib import Path
from malletrain.common.oom_kills import OomKills
Path({str(memory_group / "cgroup.procs")!r}).write_text(str(os.getpid()))
kills = OomKills()
before = kills.recent(time.monotonic())
code = subprocess.call([sys.executable, "-c", {eats!r}])
print(before, code, kills.recent(time.monotonic()))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", str(-signal.SIGKILL), "True"], ran.stderr
