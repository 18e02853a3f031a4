"""An installation of root on a real Slurm, whose jobs run as their owners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.impact.harvest import TRAINER, Harvest, harvest
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import find_processes
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.everybody import folder_of_everybody, python_of_everybody

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

    def submit(self, user: str, *command: str, **more: Any) -> str:
        """Submit a job for one node as a user with a token; a training unless there is a command."""
        words = ["token", "--user", user, "--role", "user", "--lifespan", "1h"]
        done = self.harvest.deployment.command(*words, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        spec = resources_pb2.JobSpec(
            name=user,
            command=[self.python, *(command or [str(TRAINER)])],
            working_directory="/tmp",
            min_nodes=1,
            max_nodes=1,
            curve=[resources_pb2.ScalingPoint(nodes=1, rate=100.0)],
            scale_up_seconds=3.0,
            scale_down_seconds=1.0,
            **more,
        )
        stubs = ServiceStubs(load(self.harvest.deployment.config), FixedToken(done.stdout.strip()))
        try:
            request = job_manager_pb2.SubmitJobsRequest(specs=[spec])
            return str(stubs.job_manager.SubmitJobs(request, timeout=30).jobs[0].id)
        finally:
            stubs.close()

    def job(self, job_id: str) -> resources_pb2.Job:
        """A job as it is now."""
        return next(job for job in self.harvest.jobs() if job.id == job_id)

    def samples(self, job_id: str) -> int:
        """Those of a job so far."""
        return int(self.job(job_id).samples)

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


@contextmanager
def shared_harvest() -> Iterator[Shared]:
    """Start a cluster whose commands all accounts can use, and the services; skips the test where there can be none."""
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    with folder_of_everybody() as folder, cluster(folder / "slurm", NODES) as slurm:
        (folder / "slurm/munge").chmod(0o711)
        python = str(python_of_everybody(folder, ANN))
        settings = SETTINGS.format(jobs=folder / "jobs", python=python)
        with harvest(folder / "harvest", slurm, interpreter=python, more_settings=settings) as running:
            yield Shared(running, slurm, python, folder / "jobs")
