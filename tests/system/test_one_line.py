"""Scripts of strangers, with one line of ours or none: each trains to its end, once, and is then COMPLETED."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.common.job_folder import OUTCOME_FILE, SUPERVISOR_FILE
from malletrain.common.processes import identify
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

STOCK = Path(__file__).parents[2] / "examples" / "stock_horovod" / "train.py"
SCRIPTS = Path(__file__).with_name("scripts")
NEEDS_HOROVOD = [
    pytest.mark.horovod,
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment"),
]
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
rescale_deadline_seconds = 150
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("one-line"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 20, "two idle nodes")
        yield deployment


def submit(system: Deployment, backend: str, *command: str, nodes: int = 2, restarts: int = 3) -> str:
    """Submit a job of a fixed scale; its identifier."""
    scale = ["--min", str(nodes), "--max", str(nodes), "--profile", "never", "--max-restarts", str(restarts)]
    submitted = system.command("submit", "--backend", backend, *scale, "--", *command)
    assert submitted.returncode == 0, submitted.stderr
    return submitted.stdout.strip()


def wait_end(system: Deployment, job_id: str) -> dict[str, Any]:
    """What `malletrain job` tells of a job at its end."""
    wait_until(lambda: system.job(job_id).HasField("end_time"), 240, f"the end of {job_id}")
    found: dict[str, Any] = system.json("job", job_id)
    return found


def run(system: Deployment, backend: str, *command: str, nodes: int = 2, restarts: int = 3) -> dict[str, Any]:
    """Submit a job of a fixed scale, and wait for its end."""
    return wait_end(system, submit(system, backend, *command, nodes=nodes, restarts=restarts))


def check_completed_once(job: dict[str, Any], samples: int) -> None:
    """Completed at the first attempt, each of its samples counted once."""
    story = [event["reason"] for event in job["events"]]
    assert job["state"] == "COMPLETED", story
    assert job["reason"].endswith("ended with exit status 0")
    assert job["restarts"] == 0, story
    assert int(job["samples"]) == samples
    if samples:
        assert int(job["progress"]["samples"]) == samples
        assert int(job["progress"]["samplesLost"]) == 0


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=NEEDS_HOROVOD), "torchrun", "command"])
def test_a_shell(system: Deployment, backend: str) -> None:
    check_completed_once(run(system, backend, "sh", "-c", "sleep 1; exit 0"), 0)


def test_a_plain_pytorch_loop(system: Deployment) -> None:
    job = run(system, "command", "python", str(SCRIPTS / "plain.py"), "300", nodes=1)
    check_completed_once(job, 300 * 32)
    assert job["reason"] == "its process on n1 ended with exit status 0"


def test_a_distributed_data_parallel_loop(system: Deployment) -> None:
    job = run(system, "torchrun", "python", str(SCRIPTS / "ddp.py"), "300")
    check_completed_once(job, 300 * 32 * 2)
    assert job["reason"] == "rank 0 on n1 ended with exit status 0"


@pytest.mark.horovod
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment")
def test_the_stock_script_of_the_examples(system: Deployment) -> None:
    job = run(system, "horovod", "python", str(STOCK), "--epochs", "5", "--batches-per-epoch", "60")
    check_completed_once(job, 5 * 60 * 32 * 2)


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=NEEDS_HOROVOD), "command"])
def test_another_exit_status_is_a_failure(system: Deployment, backend: str) -> None:
    script = "echo the learning rate is NaN\nexit 3"
    job = run(system, backend, "sh", "-c", script, nodes=1, restarts=1)
    assert job["state"] == "FAILED"
    assert job["restarts"] == 1
    assert "exit status 3" in job["reason"]
    table = system.command("jobs").stdout.splitlines()
    assert len(table) == 1 + len(system.json("jobs")), "a heading, and one line for each job"
    assert "exit status 3" in next(line for line in table if job["id"] in line)
    assert "n1 | the learning rate is NaN" in system.command("job", job["id"]).stdout


def test_a_job_that_is_done_is_not_run_again_if_its_supervisor_never_sees_that_it_ended(
    system: Deployment, tmp_path: Path
) -> None:
    """The supervisor is killed between the end of rank 0 and the file that says so."""
    runs = tmp_path / "runs"
    job_id = submit(system, "command", "python", str(SCRIPTS / "done.py"), str(tmp_path), nodes=1)
    pid = int(wait_until(lambda: runs.exists() and runs.read_text().strip(), 60, "its process"))
    folder = system.folder / "jobs" / job_id
    supervisor = json.loads((folder / SUPERVISOR_FILE).read_text())["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        (tmp_path / "go").touch()
        wait_until(lambda: identify(pid) is None, 30, "its end")
        assert not (folder / OUTCOME_FILE).exists()
    finally:
        os.kill(supervisor, signal.SIGKILL)
    job = wait_end(system, job_id)
    assert job["state"] == "COMPLETED", job["events"]
    assert job["reason"] == "the trainer says that it is done"
    assert len(runs.read_text().splitlines()) == 1
