"""Scripts that are silent for long, with all durations shrunk by settings: none is restarted but those that hang."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from malletrain.common.environment import JOB_DIR, JOB_ID
from malletrain.common.processes import find_processes, read_arguments
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(420)]

SCRIPT = str(Path(__file__).with_name("scripts") / "pausing.py")
BATCHES = 2 * 40 * 8
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"]
debounce_seconds = 0
[monitor]
stall_floor_seconds = 2
stall_unknown_seconds = 2
[job_manager]
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
stall_seconds = 8
idle_seconds = 40
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("phases"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 8, 20, "eight idle nodes")
        yield deployment


def submit(system: Deployment, kind: str, seconds: float, *options: str) -> str:
    command = ("--backend", "command", "--max", "1", "--max-restarts", "0", *options, "--")
    submitted = system.command("submit", *command, "python", SCRIPT, kind, str(seconds))
    assert submitted.returncode == 0, submitted.stderr
    return submitted.stdout.strip()


def workers(system: Deployment, job_id: str) -> list[int]:
    """Process ids of a job's script."""

    def is_ours(marks: Mapping[str, str]) -> bool:
        return marks.get(JOB_ID) == job_id and marks.get(JOB_DIR, "").startswith(str(system.folder))

    found = [process.id.pid for process in find_processes(is_ours)]
    return [pid for pid in found if SCRIPT in read_arguments(pid)]


def ended(system: Deployment, job_id: str) -> dict[str, Any]:
    wait_until(lambda: system.job(job_id).HasField("end_time"), 180, f"the end of {job_id}")
    found: dict[str, Any] = system.json("job", job_id)
    return found


def test_silence_is_no_fault(system: Deployment) -> None:
    silent = {kind: submit(system, kind, 20) for kind in ("loads", "evaluates", "compiles", "declares")}
    wait_until(lambda: "phase  evaluate, for" in system.command("job", silent["declares"]).stdout, 60, "the phase")
    for kind, job_id in silent.items():
        job = ended(system, job_id)
        assert (job["state"], job["restarts"]) == ("COMPLETED", 0), (kind, job["reason"])
        assert int(job["samples"]) == BATCHES, kind


def test_what_hangs_is_found(system: Deployment) -> None:
    limits = "--step-limit", "5"
    expected = {
        submit(system, "deadlocks", 0): "its processes have waited for each other for 8 s",
        submit(system, "evaluates", 600): "its processes have done nothing for 40 s",
        submit(system, "compiles", 600, *limits): "no batch has ended for 5 s; its limit of a step is 5 s",
        submit(system, "declares", 600, "--evaluation-limit", "6"): "in the phase evaluate for 6 s; its limit",
    }
    for job_id, reason in expected.items():
        job = ended(system, job_id)
        assert job["state"] == "FAILED"
        assert reason in job["reason"], job["reason"]


def test_a_stopped_process_is_replaced(system: Deployment) -> None:
    job_id = submit(system, "compiles", 600)
    (worker,) = wait_until(lambda: workers(system, job_id), 60, "its process")
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: workers(system, job_id) not in ([], [worker]), 60, "another process")
    assert system.command("cancel", job_id).returncode == 0


def test_limits_are_shown_and_bounded(system: Deployment) -> None:
    job_id = submit(system, "loads", 0, "--save-limit", "900", "--release-grace", "20")
    assert "limits  save 900 s, release grace 20 s" in system.command("job", job_id).stdout
    refused = system.command("submit", "--max", "1", "--release-grace", "31", "--", "python", SCRIPT, "loads", "0")
    assert refused.returncode == 2
    assert "--release-grace: expected 0 to 30 seconds, the operator's bound" in refused.stderr
    ended(system, job_id)
