"""A placeholder that is preempted before its agent can hear of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.agent.agent import PreemptionQueryError, is_preempted, was_preempted
from tests.support.certificates import certificate

RUNNING = "JobId=7 JobState=RUNNING PreemptEligibleTime=2026-11-21T12:46:21 PreemptTime=None SuspendTime=None\n"
TAKEN = RUNNING.replace("PreemptTime=None", "PreemptTime=2026-11-21T12:46:23")


def scontrol(folder: Path, body: str) -> Path:
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_when_a_job_was_preempted() -> None:
    assert is_preempted(TAKEN)
    assert not is_preempted(RUNNING)
    assert not is_preempted(RUNNING.replace("PreemptTime=None", "PreemptTime=Unknown"))
    assert not is_preempted("")


async def test_slurm_is_asked_for_the_job(tmp_path: Path) -> None:
    answers = scontrol(tmp_path, f'test "$*" = "--oneliner show job 7" && echo "{TAKEN.strip()}"')
    assert await was_preempted("7", str(answers))


_BESIDE_THE_AGENTS_POLL = """
import asyncio, sys
from malletrain.agent.agent import was_preempted
from malletrain.common.orphans import adopt_orphans, reap_orphans

async def main():
    async def poll():
        while True:
            reap_orphans(())
            await asyncio.sleep(0)
    adopt_orphans()
    polling = asyncio.create_task(poll())
    print([await was_preempted("7", sys.argv[1]) for _ in range(40)].count(True))
    polling.cancel()

asyncio.run(main())
"""


def test_the_answer_is_heard_while_the_agent_collects_what_workers_have_left(tmp_path: Path) -> None:
    answers = scontrol(tmp_path, f'echo "{TAKEN.strip()}"')
    argv = [sys.executable, "-c", _BESIDE_THE_AGENTS_POLL, str(answers)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "40"), done.stderr


async def test_a_slurm_that_does_not_tell(tmp_path: Path) -> None:
    with pytest.raises(PreemptionQueryError, match="Invalid job id"):
        await was_preempted("7", str(scontrol(tmp_path, "echo Invalid job id >&2; exit 1")))
    with pytest.raises(PreemptionQueryError, match="No such file"):
        await was_preempted("7", str(tmp_path / "missing"))


def test_its_agent_leaves_at_once(tmp_path: Path) -> None:
    scontrol(tmp_path, f'echo "{TAKEN.strip()}"')
    shown = str(certificate(tmp_path, "agent"))
    command = ["-m", "malletrain.agent", "--node", "n1", "--head", "127.0.0.1:9", "--certificate", shown]
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "node n1 is wanted back" in done.stderr
