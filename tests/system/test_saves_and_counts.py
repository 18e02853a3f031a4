"""What is known of a job's samples, and that it keeps its scale while its saves fail."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.v1 import scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(600)]

SCRIPTS = Path(__file__).with_name("scripts")
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
rescale_deadline_seconds = 300
"""
TARGET = 3000


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path / "state", SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 20, "two idle nodes")
        yield deployment


def submit(system: Deployment, script: str, *options: str) -> str:
    command = [sys.executable, str(SCRIPTS / script)]
    done = system.command("submit", "--profile", "never", *options, "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def drain(system: Deployment, *nodes: str) -> None:
    with closing(system.stubs) as stubs:
        stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=nodes), timeout=30)


def resume(system: Deployment, *nodes: str) -> None:
    with closing(system.stubs) as stubs:
        stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=nodes), timeout=30)


def test_a_target_counts_what_the_present_model_has_seen(system: Deployment) -> None:
    job = submit(system, "no_position.py", "--backend", "command", "--max", "1", "--target-samples", str(TARGET))

    def steps() -> list[int]:
        """Of each process, in order of its start."""
        paths = sorted((system.folder / "jobs" / job).glob("steps-*"))
        return [path.stat().st_size for path in paths]

    wait_until(lambda: system.job(job).samples >= TARGET // 3, 60, "a third of it")
    drain(system, "n1", "n2")
    wait_until(lambda: not system.job(job).commanded_nodes, 30, "no node")
    resume(system, "n1", "n2")
    wait_until(lambda: len(steps()) == 2 and steps()[1] > 20, 60, "another start")
    wait_until(lambda: "?" in system.command("jobs").stdout, 30, "the list")
    shown = system.command("job", job).stdout
    assert "it reports no position: what was lost is not known" in shown
    assert "lost by rollbacks" not in shown
    wait_until(lambda: system.job(job).HasField("end_time"), 120, "its end")
    ended = system.json("job", job)
    assert ended["state"] == "COMPLETED"
    assert ended["reasonCode"] == "TARGET_REACHED"
    assert ended["samplesKnown"] is ended["progress"]["positionsKnown"] is False
    first, second = steps()
    # A step may be reported and not noted.
    assert TARGET <= int(ended["samples"]) in (10 * second, 10 * second + 10)
    assert int(ended["progress"]["samplesLost"]) in (10 * first, 10 * first + 10)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_job_whose_saves_fail_does_not_grow_until_one_succeeds(system: Deployment) -> None:
    drain(system, "n2")
    job = submit(system, "failing_saves.py", "--backend", "torchrun", "--max", "2", "--curve", "1:100,2:195")
    full = system.folder / "jobs" / job / "full"
    wait_until(lambda: system.job(job).samples > 100, 240, "a training")
    full.touch()
    wait_until(lambda: system.job(job).saves_fail, 60, "a save that fails")
    resume(system, "n2")
    wait_until(lambda: len(system.json("nodes")) == 2, 20, "another node")
    generation = system.job(job).plan_generation

    def explained() -> str:
        return system.command("explain", job).stdout

    wait_until(lambda: "its scale is pinned" in explained(), 60, "a plan that leaves it alone")
    assert (
        "its saves: the newest one failed (File too large): it keeps its scale until one has succeeded" in explained()
    )
    assert "the newest one failed (File too large)" in system.command("job", job).stdout
    found = system.job(job)
    assert (len(found.commanded_nodes), found.plan_generation, found.rescales) == (1, generation, 0)
    samples = found.samples
    wait_until(lambda: system.job(job).samples > samples, 30, "further samples")
    full.unlink()
    wait_until(lambda: len(system.job(job).confirmed_nodes) == 2, 200, "a growth")
    wait_until(lambda: system.json("job", job)["progress"]["nodes"] == 2, 60, "batches on two nodes")
    assert system.json("job", job)["progress"]["samplesLost"] == 0
    assert system.job(job).samples_known
