"""The five services on virtual nodes that share a GPU: jobs of several kinds, a node taken and returned, usage."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.common.processes import find_processes
from malletrain.v1 import scavenger_pb2
from tests.gpu import nvml
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEPS = 1200
NODES = ("n1", "n2", "n3")
PATIENCE = 300.0
SETTINGS = f"""
[scavenger]
source = "static"
nodes = {json.dumps(NODES)}
debounce_seconds = 0
[scavenger.node_traits."n[1-3]"]
gpus = 1
gpu_type = "h100"
gpu_memory_mib = 1024
[job_manager]
trainer_python = "{sys.executable}"
standby_memory_mib = 4096
restart_backoff_seconds = 0.1
drain_grace_seconds = 15
"""
STEP = re.compile(r"step (\d+) of (\d) workers on (\S+):")
SHARED = "cpu:gloo,cuda:gloo"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("services"), SETTINGS, seconds=PATIENCE) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == len(NODES), PATIENCE, "idle nodes")
        yield deployment


def submit(system: Deployment, *command: str) -> str:
    curve = ["--max", "3", "--profile", "never", "--curve", "1:100,2:195,3:285", "--scale-up", "1", "--scale-down", "1"]
    done = system.command("submit", "--backend", "torchrun", *curve, "--", "python", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def said(system: Deployment, job: str) -> str:
    folder = system.folder / "jobs" / job
    paths = [folder / "supervisor.log", *sorted(folder.glob("logs/*.log"))]
    return "\n".join(f"== {path.name}\n{path.read_text()[-4000:]}" for path in paths if path.exists())


def wait(system: Deployment, job: str, predicate: Callable[[], bool], what: str) -> None:
    try:
        wait_until(predicate, PATIENCE, what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said(system, job)}") from None


def on_gpu(job: str) -> set[int]:
    """Processes of a job that have a context on the GPU."""
    own = {process.id.pid for process in find_processes(lambda found: found.get("MALLETRAIN_JOB_ID") == job)}
    return own & nvml.processes()


def samples(system: Deployment, job: str) -> int:
    """How far a job is that reports its batches."""
    return int(system.job(job).samples)


def steps(system: Deployment, job: str) -> int:
    """How far a job is that only says so in its log."""
    return max((int(step) for step, _, _ in STEP.findall(said(system, job))), default=0)


def over_a_drain(
    system: Deployment, job: str, device: str, progress: Callable[[Deployment, str], int] = samples
) -> None:
    """Wait for its workers; a node is taken away and returned while it trains; then wait for its end."""

    def trains_on(count: int) -> None:
        wait(system, job, lambda: len(system.job(job).confirmed_nodes) == count, f"{count} nodes")
        before = progress(system, job)
        wait(system, job, lambda: progress(system, job) > before, f"progress on {count} nodes")
        if device == "cuda":
            wait(system, job, lambda: len(on_gpu(job)) >= count, f"{count} workers on the GPU")

    trains_on(3)
    with closing(system.stubs) as stubs:
        stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=["n3"]), timeout=PATIENCE)
        trains_on(2)
        stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=["n3"]), timeout=PATIENCE)
    trains_on(3)
    wait(system, job, lambda: system.state(job) in ("COMPLETED", "FAILED"), "its end")
    assert system.state(job) == "COMPLETED", said(system, job)


def test_digits_learn_and_their_gpus_are_accounted_for(system: Deployment, device: str) -> None:
    job = submit(system, str(ROOT / "examples/digits/train.py"), "--samples", "50000", "--step-seconds", "0.05")
    over_a_drain(system, job, device)
    metrics = json.loads((system.folder / "jobs" / job / "completed.json").read_text())["metrics"]
    assert metrics["accuracy"] > 0.9
    done = system.command("usage", "--by", "job", "--json")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    (row,) = (row for row in json.loads(done.stdout)["rows"] if job in json.dumps(row))
    assert row["gpuSeconds"] == pytest.approx(row["nodeSeconds"], rel=0.01) != 0


def test_fsdp2_learns(system: Deployment, device: str) -> None:
    job = submit(
        system,
        str(ROOT / "examples/fsdp2/elastic.py"),
        *("--epochs", "4", "--step-seconds", "0.05", "--collectives", SHARED if device == "cuda" else "gloo"),
    )
    over_a_drain(system, job, device)
    metrics = json.loads((system.folder / "jobs" / job / "completed.json").read_text())["metrics"]
    assert metrics["loss"] < 3.0


def test_plain_ddp_is_started_again_and_goes_on(system: Deployment, device: str) -> None:
    job = submit(system, str(ROOT / "tests/gpu/plain_ddp.py"), str(STEPS))
    over_a_drain(system, job, device, steps)
    found = STEP.findall(said(system, job))
    assert {workers for _, workers, _ in found} >= {"3"}
    assert {place for _, _, place in found} == {"cuda:0" if device == "cuda" else "cpu"}
    assert int(found[-1][0]) == STEPS
