"""The five services on a real batch scheduler, and a real training."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.schedulers.batch_cluster import BatchCluster
from tests.support.ports import free_port
from tests.system.deployment import Deployment, deployed
from tests.training import trainer_settings
from tests.training.accounts import Accounts, accounts_of

TRAINER = Path(trainer_settings.__file__).with_name("trainer.py")
_CALL_SECONDS = 10.0
_NICE = 10
"""Nodes are played by this machine, whose cores the scheduler's daemons need."""


@dataclass(frozen=True)
class Installation:
    """A running one.

    Attributes:
        folder: State folder.
        deployment: The services.
    """

    folder: Path
    deployment: Deployment

    def submit(self, least: int, most: int, *options: str) -> str:
        """Submit a training, whose curve is declared: there is no time to measure it. Returns its identifier."""
        curve = ",".join(f"{nodes}:{100 * nodes**0.9:.0f}" for nodes in range(1, most + 1))
        sizes = ["--min", str(least), "--max", str(most), "--curve", curve, "--scale-up", "3", "--scale-down", "1"]
        before = {job.id for job in self.jobs()}
        done = self.deployment.command("submit", *sizes, *options, "--", sys.executable, str(TRAINER), timeout=90)
        assert done.returncode == 0, done.stderr
        (new,) = {job.id for job in self.jobs()} - before
        return new

    def jobs(self) -> list[resources_pb2.Job]:
        """All of them, without the cost of a command."""
        stubs = self.deployment.stubs
        try:
            return list(stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=_CALL_SECONDS).jobs)
        finally:
            stubs.close()

    def job(self, job_id: str) -> resources_pb2.Job:
        """As it is now."""
        return self.deployment.job(job_id)

    def nodes(self, job_id: str) -> set[str]:
        """Those that it uses."""
        job = self.job(job_id)
        assert job.state != resources_pb2.JOB_STATE_FAILED, job.reason
        return set(job.confirmed_nodes)

    def samples(self, job_id: str) -> int:
        """Those so far."""
        return int(self.job(job_id).samples)

    def end_after(self, job_id: str, samples: int) -> None:
        """Have a training end there."""
        (self.folder / "jobs" / job_id / "wanted").write_text(str(samples))

    def accounts(self, job_id: str) -> Accounts:
        """What its workers have noted."""
        return accounts_of(self.folder / "jobs" / job_id)


@contextmanager
def installed(cluster: BatchCluster, folder: Path, **source: object) -> Iterator[Installation]:
    """Start one, whose commands find the scheduler by the environment of this process.

    Args:
        cluster: The scheduler.
        folder: For all files.
        source: Settings of the section for the scheduler, more than it has.
    """
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec nice -n {_NICE} {sys.executable} "$@"\n')
    python.chmod(0o755)
    state = folder / "state"
    hold = {
        "queue": "scavenge",
        "agents_address": f"{cluster.head}:{free_port()}",
        "listen": "0.0.0.0",
        "python": str(python),
        "calm_seconds": 2,
        "surplus_seconds": 5,
        "refusal_seconds": 1,
        "standby_memory_mib": 0,
    }
    # The first section that `deployed` writes is that of the addresses.
    settings = f"""
monitor_for_nodes = "{cluster.head}:{free_port()}"
[job_manager]
head_address = "{cluster.head}"
interfaces = {json.dumps([cluster.interface])}
standby_memory_mib = 0
[scavenger]
source = "{cluster.name}"
debounce_seconds = 1
[scavenger.{cluster.name}]
{_lines({**cluster.source, **source})}
[scavenger.{cluster.name}.hold]
{_lines(hold)}
"""
    with deployed(state, settings, host=cluster.head, seconds=120.0) as deployment:
        yield Installation(state, deployment)


def _lines(values: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
