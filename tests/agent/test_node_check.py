"""The check of a node before its first worker: the judgement, and scripts that fail, hang and flood."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from malletrain.agent.node_check.judging import (
    CheckLimits,
    GpuMeasure,
    NodeMeasures,
    fatal_xids,
    reasons_against,
)
from malletrain.agent.node_check.running import check_node

LIMITS = CheckLimits(seconds=5.0, least_memory_mib=100, folders=("/tmp",))


def test_what_is_not_known_is_nothing_against_a_node() -> None:
    assert reasons_against(NodeMeasures(), LIMITS) == []
    assert reasons_against(NodeMeasures(100, gpus=(GpuMeasure(3), GpuMeasure(0, 0))), LIMITS) == []


def test_each_fault_is_told() -> None:
    found = reasons_against(
        NodeMeasures(99, ("/scratch can't be written to",), (GpuMeasure(15), GpuMeasure(0, 1)), ("Xid 79 of GPU 0",)),
        LIMITS,
    )
    assert found == [
        "/scratch can't be written to",
        "99 MiB of memory are available, expected 100",
        "GPU 0 is lost",
        "GPU 1 has 1 uncorrected memory errors",
        "the kernel log has Xid 79 of GPU 0",
    ]


def test_only_recent_errors_of_the_gpu_itself_count() -> None:
    record = "4,99,{0},-;NVRM: Xid (PCI:0000:3b:00): {1}, pid=12, name=python"
    old, recent = 1_000_000, 9_000_000_000
    by_programs = [record.format(recent, xid) for xid in (13, 31, 43, 45)]
    named_so = f"4,99,{recent},-;x[12]: NVRM: Xid (PCI:0000:3b:00): 79, made up"
    assert fatal_xids([*by_programs, record.format(old, 79), named_so, "", "4,5"], 9100.0) == ()
    assert fatal_xids([record.format(recent, 79)] * 3, 9100.0) == ("Xid 79 of GPU 0000:3b:00",)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('[ "$1" = n1 ] && [ "$MALLETRAIN_NODE" = n1 ]', ""),
        ("echo; echo 'no \\033[1m mount' >&2; exit 3", "ended with 3: no"),
        ("exec sleep 600", "has not ended within 2 s"),
        ("sleep 600 & exit 0", "has not ended within 2 s"),
        ("exec yes", "has not ended within 2 s"),
        ("yes | head -c 3000000", ""),
        ("yes | head -c 300000; exit 1", "ended with 1: y"),
    ],
)
async def test_the_script_decides_within_its_limits(tmp_path: Path, body: str, expected: str) -> None:
    script = tmp_path / "check"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    begin = time.monotonic()
    limits = CheckLimits(5.0, 1, folders=(str(tmp_path),), script=str(script), script_seconds=2.0)
    found = await check_node("n1", limits)
    assert (expected in found) if expected else not found, found
    assert found.isprintable()
    assert len(found) <= 400
    assert time.monotonic() - begin < 20
    assert asyncio.get_running_loop().is_running()


@pytest.mark.processes
async def test_a_script_that_others_could_have_written_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "check"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o777)
    found = await check_node("n1", CheckLimits(5.0, 1, folders=(f"{tmp_path}/no",), script=str(script)))
    assert "everybody can write" in found
    assert "no can't be written to (No such file or directory)" in found


@pytest.mark.processes
@pytest.mark.parametrize(("folder", "status"), [("", 0), ("missing", 1)])
def test_the_check_by_itself_says_why(tmp_path: Path, folder: str, status: int) -> None:
    options = ["--check-seconds", "60", "--check-memory-mib", "0", "--check-folder", str(tmp_path / folder)]
    done = subprocess.run(
        [sys.executable, "-m", "malletrain.agent.node_check", "n1", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("can't be written to" in done.stdout) == bool(status)
