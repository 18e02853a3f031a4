"""What a growth costs, against a stopwatch: the script's own notes of its last and first steps."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from malletrain.v1 import scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "scripts" / "slow_to_set_up.py"
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
# As small as the stall by far: any pause is too long for a job to be taken for rescaled by its records alone.
[monitor]
cold_gap_seconds = 0.1
"""
SET_UP_SECONDS = 3.0


@pytest.mark.parametrize("backend", ["command", "torchrun"])
def test_r_up_is_measured_and_planned_with_though_each_process_is_new(tmp_path: Path, backend: str) -> None:
    with deployed(tmp_path / "state", SETTINGS) as system:
        wait_until(lambda: len(system.json("nodes")) == 2, 20, "two idle nodes")
        drain(system, "n2")
        scale = ["--max", "2", "--profile", "never", "--curve", "1:100,2:195"]
        done = system.command(
            "submit", "--backend", backend, *scale, "--", sys.executable, str(SCRIPT), str(SET_UP_SECONDS)
        )
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        wait_until(lambda: len(steps(system, job)) > 20, 120, "steps on a node")
        assert profile(system, job)["scaleUpSource"] != "MEASURED"
        resume(system, "n2")
        wait_until(lambda: system.job(job).scale_command.to_nodes == 2, 30, "the command to grow")
        if backend == "command":  # who commands a change need not live through it
            os.kill(system.pids()["job_manager"], signal.SIGKILL)
        wait_until(lambda: len(steps(system, job)) > 60 and steps(system, job)[-30][0] == 2, 120, "steps on two nodes")
        wait_until(lambda: profile(system, job)["scaleUpSource"] == "MEASURED", 60, "a measured R_up")
        found = profile(system, job)
        measured, watched = found["scaleUpSeconds"], pause(steps(system, job))
    assert watched > SET_UP_SECONDS
    # A usual step is subtracted from both, which on a busy machine is not the same one.
    assert measured == pytest.approx(watched, abs=2.0)


def pause(found: list[tuple[int, float]]) -> float:
    """The stopwatch: from the last step on one node to the first on two, less a usual one."""
    gaps = [after[1] - before[1] for before, after in itertools.pairwise(found) if (before[0], after[0]) == (1, 2)]
    assert len(gaps) == 1
    return gaps[0] - 0.05


def steps(system: Deployment, job: str) -> list[tuple[int, float]]:
    """Scale and end of each step, in order of time."""
    lines = [
        line.split()
        for path in (system.folder / "jobs" / job / "logs").glob("n*.log")
        for line in path.read_text().splitlines()
    ]
    noted = [(int(line[1]), float(line[2])) for line in lines if line[:1] == ["step"] and len(line) == 3]
    return sorted(noted, key=lambda step: step[1])


def profile(system: Deployment, job: str) -> Any:
    done = system.command("curve", job, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def drain(system: Deployment, node: str) -> None:
    system.stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=[node]), timeout=30)


def resume(system: Deployment, node: str) -> None:
    system.stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=[node]), timeout=30)
