"""Single GPUs of partly used nodes of a real Slurm (which only claims to have them), beside jobs of the main queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.impact.harvest import PLACEHOLDER, Harvest, harvest
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import find_processes
from malletrain.scavenger.machine.gpu_units import node_of_unit
from malletrain.v1 import resources_pb2
from tests.slurm.cluster import Cluster, cluster, missing
from tests.slurm.test_harvest import answered
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

PATIENCE = 180.0
GPUS = 4
PARTLY_USED, IDLE = "n002", "n003"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path / "slurm", 3, gpu_nodes=2, shared_gpus=GPUS) as running:
        yield running


def test_trainings_use_the_gpus_that_main_jobs_leave_and_give_single_ones_back(slurm: Cluster, tmp_path: Path) -> None:
    first = MainJob(slurm, tmp_path / "first", PARTLY_USED, gpus=1)
    wait_until(first.runs, PATIENCE, "a main job on one GPU")
    with harvest(tmp_path / "harvest", slurm, partitions=("gpu",), units="gpus") as running:
        for _ in range(2):
            running.submit(GPUS)
        wait_until(lambda: len(used(running)) == 2 * GPUS - 1, PATIENCE, "trainings on all other GPUs")
        everything = {(node, device) for node in (PARTLY_USED, IDLE) for device in range(GPUS)}
        wait_until(lambda: devices(running) == everything - first.devices(), PATIENCE, "a GPU of its own for each")
        running.await_training()

        second, third = (MainJob(slurm, tmp_path / name, PARTLY_USED, gpus=1) for name in ("second", "third"))
        wait_until(lambda: second.runs() and third.runs(), PATIENCE, "main jobs on two more")
        of_main = first.devices() | second.devices() | third.devices()
        assert len(of_main) == 3
        assert not devices(running) & of_main, "no process of ours is where theirs are"
        wait_until(lambda: len(held(slurm)) == GPUS + 1, PATIENCE, "the other five to be held")
        assert Counter(held(slurm)) == {PARTLY_USED: 1, IDLE: GPUS}, "the node's last one is ours"
        before = running.samples()
        wait_until(lambda: running.samples() > before, PATIENCE, "trainings that go on")

        for job in (first, second, third):
            job.end()
        wait_until(lambda: len(held(slurm)) == 2 * GPUS, PATIENCE, "all GPUs to be held")
        done = running.deployment.command("drain", IDLE, timeout=90)  # it waits until the node is released
        assert done.returncode == 0, done.stderr
        wait_until(lambda: {*held(slurm)} == {PARTLY_USED}, PATIENCE, "all GPUs of a drained node to be given back")
        wait_until(lambda: {node for node, _ in devices(running)} == {PARTLY_USED}, PATIENCE, "trainings on the others")
    assert not find_job_processes(tmp_path / "harvest")
    assert not slurm.jobs(PLACEHOLDER)


class MainJob:
    """One that takes some GPUs of a node."""

    def __init__(self, slurm: Cluster, told: Path, node: str, gpus: int) -> None:
        self._slurm, self._told, self._node = slurm, told, node
        script = f"echo $CUDA_VISIBLE_DEVICES >{told}.part; mv {told}.part {told}; exec sleep 900"
        how = ["--partition=gpu", f"--nodelist={node}", f"--gres=gpu:{gpus}", "--cpus-per-task=2", "--mem=1000"]
        self._id = slurm.submit(1, script, *how, "--time=20")

    def runs(self) -> bool:
        return self._told.exists()

    def devices(self) -> set[tuple[str, int]]:
        return {(self._node, int(number)) for number in self._told.read_text().split(",")}

    def end(self) -> None:
        self._slurm.run("scancel", self._id)


def held(slurm: Cluster) -> list[str]:
    """The node of each placeholder that runs."""
    return [node for _, state, nodes in slurm.jobs(PLACEHOLDER) if state == "RUNNING" for node in nodes]


def used(running: Harvest) -> set[str]:
    """GPUs, by our names, on which jobs train; none is used twice."""
    jobs = [job for job in answered(running.jobs) if job.state == resources_pb2.JOB_STATE_RUNNING]
    units = [unit for job in jobs for unit in job.confirmed_nodes]
    assert len(units) == len(set(units))
    return set(units)


def devices(running: Harvest) -> set[tuple[str, int]]:
    """Node and device of each worker, as its environment says."""
    ours = find_processes(lambda environ: Path(environ.get(JOB_DIR, "/")).is_relative_to(running.folder))
    found = set()
    for process in ours:
        visible = process.environment.get("CUDA_VISIBLE_DEVICES", "")
        if node := process.environment.get(NODE):
            found.add((node_of_unit(node), int(visible)))
    return found
