"""Scripts that fail by themselves: started as often as they may be, they say why, and cost nobody a node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(600)]

SCRIPTS = Path(__file__).with_name("scripts")
NODES = ["n1", "n2", "n3", "n4"]
SETTINGS = f"""
[scavenger]
source = "static"
nodes = {NODES}
debounce_seconds = 0
quarantine_failures = 1
[job_manager]
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
rescale_deadline_seconds = 150
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("faults"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == len(NODES), 20, "idle nodes")
        yield deployment


@pytest.fixture(autouse=True)
def no_node_is_blamed(system: Deployment) -> Iterator[None]:
    """Every test leaves all nodes idle, though one failure of theirs would be enough."""
    yield
    assert [node["name"] for node in system.json("nodes")] == NODES


def run(system: Deployment, backend: str, low: int, high: int, restarts: int, *command: str) -> dict[str, Any]:
    """Submit a job, and wait for its end."""
    options = ["--min", str(low), "--max", str(high), "--profile", "never", "--max-restarts", str(restarts)]
    submitted = system.command("submit", "--backend", backend, *options, "--", *command)
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    wait_until(lambda: system.job(job_id).HasField("end_time"), 300, f"the end of {job_id}")
    found: dict[str, Any] = system.json("job", job_id)
    return found


def check_failed(job: dict[str, Any], starts: int) -> None:
    """It has been started as often as it may be, and is FAILED now."""
    story = [event["reason"] for event in job["events"]]
    assert job["state"] == "FAILED", story
    assert job["restarts"] == starts - 1, story


def faulty(how: str) -> tuple[str, ...]:
    return ("python", str(SCRIPTS / "faulty.py"), how)


def starts_in(system: Deployment, job: dict[str, Any]) -> int:
    """How many times its script has begun, by its logs: those of the workers of the first rank."""
    said = system.command("logs", job["id"]).stdout
    return said.count("worker 0 of") or said.count("| starts")


def test_a_shell_that_fails_at_once_on_two_nodes(system: Deployment) -> None:
    job = run(system, "command", 2, 2, 2, "sh", "-c", "echo starts; exit 2")
    check_failed(job, 3)
    assert starts_in(system, job) == 3
    assert "exit status 2: starts" in job["lastFailure"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_script_that_fails_on_all_workers(system: Deployment, restarts: int) -> None:
    job = run(system, "torchrun", 3, 3, restarts, *faulty("all"))
    check_failed(job, restarts + 1)
    assert starts_in(system, job) == restarts + 1
    assert job["reason"].splitlines()[-1].endswith("KeyError: 'momentum'")


def test_the_reason_is_that_of_the_worker_that_failed_first(system: Deployment) -> None:
    job = run(system, "torchrun", 3, 3, 0, *faulty("one"))
    check_failed(job, 1)
    first, *_, last = job["reason"].splitlines()
    assert "exit status 1: ValueError: no label 31 in row 5" in first
    assert last.endswith("ValueError: no label 31 in row 5")
    assert "onnection closed" not in job["reason"]


@pytest.mark.parametrize(("how", "said"), [("segfault", "signal 11 (segmentation fault)"), ("kill", "signal 9")])
def test_a_signal_that_comes_again_and_again(system: Deployment, how: str, said: str) -> None:
    job = run(system, "command", 1, 1, 1, *faulty(how))
    check_failed(job, 2)
    assert starts_in(system, job) == 2
    assert f"killed by {said}" in job["lastFailure"]


def test_a_scale_at_which_it_fails_is_left_out_and_another_one_tried(system: Deployment) -> None:
    # No Python: a crowded machine would start with the workers that have booted by then.
    script = '[ "$WORLD_SIZE" = 3 ] && { echo "40 rows are not for 3"; exit 1; }; sleep 2'
    job = run(system, "torchrun", 1, 3, 3, "sh", "-c", script)
    story = [event["reason"] for event in job["events"]]
    assert job["state"] == "COMPLETED", story
    assert any("fails soon on 3 nodes, so others are tried; --permitted names" in reason for reason in story), story
    assert any(reason.startswith("restart 1 of 3") and "exit status 1: 40 rows" in reason for reason in story), story


def test_one_that_fails_takes_nothing_from_one_that_trains(system: Deployment) -> None:
    steady = ["--backend", "command", "--max", "1", "--", "python", str(SCRIPTS / "plain.py"), "200"]
    trains = system.command("submit", *steady).stdout.strip()
    check_failed(run(system, "command", 1, 1, 1, "sh", "-c", "exit 1"), 2)
    wait_until(lambda: system.job(trains).HasField("end_time"), 240, f"the end of {trains}")
    job = system.json("job", trains)
    assert (job["state"], job["restarts"], job["preemptions"]) == ("COMPLETED", 0, 0)
