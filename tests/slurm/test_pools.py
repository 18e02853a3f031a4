"""Two partitions of a real Slurm, one of them with GPUs (which it only claims to have): two pools."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from benchmarks.impact.harvest import Harvest, harvest
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import find_processes
from malletrain.v1 import resources_pb2
from tests.slurm.cluster import Cluster, cluster, missing
from tests.slurm.test_harvest import answered
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

PATIENCE = 180.0
SCALE = 2
PLAIN = {"n001", "n002"}
WITH_GPUS = {"n003", "n004"}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path / "slurm", len(PLAIN | WITH_GPUS), gpu_nodes=len(WITH_GPUS)) as running:
        yield running


def test_no_job_spans_pools_and_each_gpu_has_a_worker(slurm: Cluster, tmp_path: Path) -> None:
    with harvest(tmp_path / "harvest", slurm, partitions=("main", "gpu")) as running:
        for _ in range(2):
            running.submit(SCALE, least=SCALE)
        wait_until(lambda: {*places(running)} == {frozenset(PLAIN), frozenset(WITH_GPUS)}, PATIENCE, "one job a pool")
        by_gpu, other = (places(running)[frozenset(nodes)] for nodes in (WITH_GPUS, PLAIN))
        assert workers(running, by_gpu, WITH_GPUS) == {(node, rank) for node in WITH_GPUS for rank in (0, 1)}
        assert workers(running, other, PLAIN) == {(node, 0) for node in PLAIN}
        told = visible_gpus(running)
        assert all(told[node] == {"0,1"} for node in WITH_GPUS), told
        assert all(told[node] == {None} for node in PLAIN), told

        slurm.submit(1, "sleep 600", "--partition=gpu")
        wait_until(lambda: [*places(running).values()] == [other], PATIENCE, "the job with GPUs to have lost its nodes")
        running.cancel(other)
        wait_until(lambda: places(running) == {frozenset(PLAIN): by_gpu}, PATIENCE, "it to go on in the other pool")
        assert workers(running, by_gpu, PLAIN) == {(node, 0) for node in PLAIN}, "a node without GPUs has one"


def places(running: Harvest) -> dict[frozenset[str], str]:
    """By the nodes that they use: the jobs that train."""
    jobs = [job for job in answered(running.jobs) if job.state == resources_pb2.JOB_STATE_RUNNING]
    for job in jobs:
        nodes = set(job.confirmed_nodes)
        assert nodes <= PLAIN or nodes <= WITH_GPUS, f"{job.id} spans pools: {nodes}"
    return {frozenset(job.confirmed_nodes): job.id for job in jobs}


def visible_gpus(running: Harvest) -> dict[str, set[str | None]]:
    """By node: what its workers are told of GPUs."""
    found: dict[str, set[str | None]] = {}
    ours = find_processes(lambda environ: Path(environ.get(JOB_DIR, "/")).is_relative_to(running.folder))
    for process in ours:
        if node := process.environment.get(NODE):
            found.setdefault(node, set()).add(process.environment.get("CUDA_VISIBLE_DEVICES"))
    return found


def workers(running: Harvest, job_id: str, nodes: Collection[str]) -> set[tuple[str, int]]:
    """Node and local rank of each worker that a job has had on some nodes: each has a log."""
    logs = (running.folder / "state" / "jobs" / job_id / "logs").glob("n*.log")
    found = (path.name.split(".") for path in logs)
    return {(node, int(rank)) for node, rank, _ in found if node in nodes}
