"""Jobs of two users on what a real Slurm leaves idle, each run as its owner; services and placeholders are root's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.impact.harvest import PLACEHOLDER
from tests.slurm.owners import ANN, BOB, NODES, PATIENCE, Shared, shared_harvest
from tests.support.everybody import run_as
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as their owners"),
]


@pytest.fixture
def shared() -> Iterator[Shared]:
    with shared_harvest() as running:
        yield running


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
