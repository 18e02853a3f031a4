"""A job of whole machines where single GPUs are the unit, on a real Slurm (which only claims to have them)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.impact.harvest import Harvest, harvest
from malletrain.scavenger.machine.gpu_units import node_of_unit
from tests.slurm.cluster import Cluster, cluster, missing
from tests.slurm.test_gpus import MainJob
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

PATIENCE = 240.0
GPUS = 2


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path / "slurm", 4, gpu_nodes=3, shared_gpus=GPUS) as running:
        yield running


def test_a_job_has_whole_machines_beside_a_job_of_single_gpus(slurm: Cluster, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with harvest(tmp_path / "harvest", slurm, partitions=("gpu",), units="gpus") as running:
        replicas = ("--nodes-per-replica", str(GPUS), "--topology", "require-replica", "--curve", "2:200,4:400")
        program = f'echo "$MALLETRAIN_HOSTS" >> {told}; exec sleep 900'
        whole = submit(running, *replicas, "--max", "4", "--leave-grace", "1", "--", "sh", "-c", program)
        single = submit(running, "--max", "1", "--curve", "1:100", "--", "sleep", "900")
        wait_until(lambda: machines(running, whole) == [GPUS, GPUS], PATIENCE, "two whole machines")
        wait_until(lambda: machines(running, single) == [1], PATIENCE, "a single GPU beside them")

        lost = node_of_unit(confirmed(running, whole)[0])
        main = MainJob(slurm, tmp_path / "main", lost, gpus=1)
        wait_until(lambda: main.runs() and machines(running, whole) == [GPUS], PATIENCE, "the other machine alone")
        assert lost not in map(node_of_unit, confirmed(running, whole)), "no part of a machine is kept"
        main.end()
        wait_until(lambda: machines(running, whole) == [GPUS, GPUS], PATIENCE, "two whole machines again")
        running.cancel()
    starts = [[entry.split(":")[0] for entry in line.split(",")] for line in told.read_text().split()]
    assert len(starts) >= 3
    for units in starts:
        of_replicas = [units[first : first + GPUS] for first in range(0, len(units), GPUS)]
        assert all(len(set(map(node_of_unit, replica))) == 1 for replica in of_replicas), units


def submit(running: Harvest, *options: str) -> str:
    done = running.deployment.command("submit", "--backend", "command", *options, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def confirmed(running: Harvest, name: str) -> list[str]:
    """The GPUs that a job runs on, once these are the commanded ones."""
    job = running.deployment.job(name)
    return list(job.commanded_nodes) if set(job.confirmed_nodes) == set(job.commanded_nodes) else []


def machines(running: Harvest, name: str) -> list[int]:
    """How many GPUs of each machine a job runs on."""
    return sorted(Counter(map(node_of_unit, confirmed(running, name))).values())
