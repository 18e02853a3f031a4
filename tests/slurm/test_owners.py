"""Jobs of two users on what a real Slurm leaves idle, each run as its owner; services and placeholders are root's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.impact.harvest import PLACEHOLDER, TRAINER, Harvest, harvest
from malletrain.cli.settings import load
from malletrain.cli.stubs import ServiceStubs
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import find_processes
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.everybody import folder_of_everybody, python_of_everybody, run_as
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as their owners"),
]
ANN, BOB = "www-data", "games"
NODES = 3
PATIENCE = 180.0
SETTINGS = """
[job_manager]
run_as = "owner"
min_uid = 5
jobs_dir = "{jobs}"
trainer_python = "{python}"
"""


@dataclass(frozen=True)
class Shared:
    """A harvest for several users.

    Attributes:
        harvest: The running system.
        slurm: The cluster.
        python: An interpreter that users can run.
        jobs: Folder of the jobs' folders.
    """

    harvest: Harvest
    slurm: Cluster
    python: str
    jobs: Path

    def submit(self, user: str) -> str:
        """Submit a training for one node as a user with a token."""
        done = self.harvest.deployment.command("token", "--user", user, "--role", "user", "--lifespan", "1h")
        assert done.returncode == 0, done.stderr
        spec = resources_pb2.JobSpec(
            name=user,
            command=[self.python, str(TRAINER)],
            working_directory="/tmp",
            min_nodes=1,
            max_nodes=1,
            curve=[resources_pb2.ScalingPoint(nodes=1, rate=100.0)],
            scale_up_seconds=3.0,
            scale_down_seconds=1.0,
        )
        stubs = ServiceStubs(load(self.harvest.deployment.config), FixedToken(done.stdout.strip()))
        try:
            request = job_manager_pb2.SubmitJobsRequest(specs=[spec])
            return str(stubs.job_manager.SubmitJobs(request, timeout=30).jobs[0].id)
        finally:
            stubs.close()

    def running(self) -> dict[str, tuple[str, ...]]:
        """Confirmed nodes of each job."""
        return {job.id: tuple(job.confirmed_nodes) for job in self.harvest.jobs()}

    def users(self, job_id: str) -> dict[str, set[str]]:
        """By place, a node or the head node: whose the processes of a job are there."""
        folder = str(self.jobs / job_id)
        found: dict[str, set[str]] = {}
        for process in find_processes(lambda environment: environment.get(JOB_DIR) == folder):
            try:
                user = psutil.Process(process.id.pid).username()
            except psutil.NoSuchProcess:
                continue
            found.setdefault(process.environment.get(NODE, "head"), set()).add(user)
        return found


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    with folder_of_everybody() as folder, cluster(tmp_path / "slurm", NODES) as slurm:
        python = str(python_of_everybody(folder, ANN))
        settings = SETTINGS.format(jobs=folder / "jobs", python=python)
        with harvest(folder / "harvest", slurm, interpreter=python, more_settings=settings) as running:
            yield Shared(running, slurm, python, folder / "jobs")


def test_each_job_runs_as_its_owner_on_slurms_nodes_and_leaves_them_at_once(shared: Shared, tmp_path: Path) -> None:
    jobs = {user: shared.submit(user) for user in (ANN, BOB)}

    def both_train() -> bool:
        found = shared.running()
        return all(len(found[job_id]) == 1 for job_id in jobs.values())

    wait_until(both_train, PATIENCE, "both trainings on a node each")
    wait_until(lambda: all(job.samples > 0 for job in shared.harvest.jobs()), PATIENCE, "samples of both")
    nodes = shared.running()
    assert set(nodes[jobs[ANN]]).isdisjoint(nodes[jobs[BOB]])
    for user, job_id in jobs.items():
        assert shared.users(job_id) == {"head": {user}, nodes[job_id][0]: {user}}
    assert "Permission denied" in run_as(ANN, ["/bin/ls", str(shared.jobs / jobs[BOB])]).stderr
    stamp = tmp_path / "main"
    shared.slurm.submit(NODES, f"touch {stamp}\nsleep 4")
    wait_until(stamp.exists, PATIENCE, "the main job")
    assert not shared.harvest.watcher.look(), "the main job has its nodes for itself"
    for user, job_id in jobs.items():
        assert set(shared.users(job_id)) <= {"head"}, f"a process of {user} is left on a node"
    before = {job.id: job.samples for job in shared.harvest.jobs()}
    wait_until(both_train, PATIENCE, "both to be back")
    wait_until(lambda: all(job.samples > before[job.id] for job in shared.harvest.jobs()), PATIENCE, "more samples")
    assert shared.slurm.jobs(PLACEHOLDER)
