"""A job that is slower on nodes of two racks than in one: Monitor measures it, and people are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("scripts") / "near_or_far.py"
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
[scavenger.topology]
"n[1-2]" = ["row1", "rack1"]
n3 = ["row1", "rack2"]
"""
NEAR, FAR = {"n1", "n2"}, {"n1", "n3"}
NEAR_SECONDS, FAR_SECONDS = 0.05, 0.1


def test_what_a_job_loses_by_spreading_is_measured_and_told(tmp_path: Path) -> None:
    told = tmp_path / "seconds"
    told.write_text(str(FAR_SECONDS))
    with deployed(tmp_path / "up", SETTINGS) as system:
        wait_until(lambda: len(system.json("nodes")) == 3, 60, "three idle nodes")
        run(system, "drain", "n2")
        job = submit(system, tmp_path)
        await_steps(system, job, FAR)
        assert not system.json("job", job)["spreadLosses"], "there is nothing to compare with"
        run(system, "drain", "n3")
        told.write_text(str(NEAR_SECONDS))
        run(system, "resume", "n2")
        await_steps(system, job, NEAR)

        wait_until(lambda: system.json("job", job)["spreadLosses"], 120, "a loss")
        (loss,) = system.json("job", job)["spreadLosses"]
        assert (loss["sharedLevels"], loss["nearLevels"], loss["nodes"]) == (1, 2, [2])
        assert 0.3 < loss["loss"] < 0.6, "half of the rate, as far as this machine keeps time"
        assert system.json("curve", job)["spreadLosses"]
        words = "in several groups of level 2 "
        assert words in system.command("job", job).stdout
        assert f"nodes far from each other: {words}" in system.command("curve", job).stdout

        (before,) = system.json("job", job)["spreadLosses"]
        (tmp_path / "go").touch()
        wait_until(lambda: system.job(job).HasField("end_time"), 120, "the job's end")
        (after,) = system.json("job", job)["spreadLosses"]
        assert after["loss"] == pytest.approx(before["loss"], abs=0.1), "it is kept with the job"


def run(system: Deployment, *arguments: str) -> None:
    done = system.command(*arguments, timeout=90)
    assert done.returncode == 0, done.stderr


def submit(system: Deployment, folder: Path) -> str:
    scale = ["--min", "2", "--max", "2", "--profile", "never", "--curve", "2:100", "--topology", "prefer"]
    job = ["--backend", "command", *scale, "--", sys.executable, str(SCRIPT), str(folder)]
    done = system.command("submit", *job)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def await_steps(system: Deployment, job: str, nodes: set[str]) -> None:
    """Wait until a job has trained for a while on these nodes."""
    wait_until(lambda: set(system.job(job).confirmed_nodes) == nodes, 120, f"the nodes {nodes}")
    begin = records(system, job)
    wait_until(lambda: records(system, job) > begin + 100, 120, "a hundred steps there")


def records(system: Deployment, job: str) -> int:
    return int((system.json("job", job)["progress"] or {}).get("records", 0))
