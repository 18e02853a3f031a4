"""Finds the processes of jobs on this machine in /proc, independently of the services."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.processes import find_processes


@dataclass(frozen=True)
class JobProcess:
    """A process of a job.

    Attributes:
        pid: Process id.
        job_id: Job identifier.
        node: Node it runs on; empty for a supervisor.
    """

    pid: int
    job_id: str
    node: str


def find_job_processes(folder: Path) -> list[JobProcess]:
    """Live processes of all jobs whose folder lies below `folder`."""
    return [
        JobProcess(process.id.pid, process.environment.get(env.JOB_ID, ""), process.environment.get(env.NODE, ""))
        for process in find_processes(lambda environment: environment.get(env.JOB_DIR, "").startswith(f"{folder}/"))
    ]
