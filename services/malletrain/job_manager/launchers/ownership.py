"""Whose is a process? Told by the environment that it was started with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from malletrain.job_manager.launchers import environment as env

Belongs = Callable[[Mapping[str, str]], bool]


def of_job(jobs: Path, job_id: str) -> Belongs:
    """Processes of a job, its supervisor included; `jobs` is the folder of the jobs' folders."""
    path = str(jobs / job_id)
    return lambda found: found.get(env.JOB_DIR) == path


def of_job_on(jobs: Path, job_id: str, nodes: frozenset[str]) -> Belongs:
    """Processes of a job on nodes, and its supervisor."""
    mine = of_job(jobs, job_id)
    return lambda found: mine(found) and (env.NODE not in found or found[env.NODE] in nodes)


def of_supervisor(jobs: Path, job_id: str, incarnation: int) -> Belongs:
    """One supervisor of a job."""
    mine = of_job(jobs, job_id)
    return lambda found: mine(found) and env.NODE not in found and found.get(env.INCARNATION) == str(incarnation)


def of_others(jobs: Path, supervised: frozenset[str]) -> Belongs:
    """Processes of all jobs but the supervised ones."""
    parent = str(jobs)

    def belongs(found: Mapping[str, str]) -> bool:
        folder, _, job_id = found.get(env.JOB_DIR, "").rpartition(os.sep)
        return folder == parent and job_id not in supervised

    return belongs


def of_others_on(jobs: Path, supervised: frozenset[str], nodes: frozenset[str]) -> Belongs:
    """Processes on nodes of all jobs but the supervised ones."""
    others = of_others(jobs, supervised)
    return lambda found: found.get(env.NODE) in nodes and others(found)
