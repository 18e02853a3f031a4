"""An operator's check of nodes: real services and agents, on nodes that a Slurm of recorded answers calls idle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.scavenger.recorded_commands import RecordedCommands
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.upgrade.test_agents import settings

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(240)]

_CHECK = """#!/bin/sh
[ -e {folder}/hangs ] && [ "$1" = n2 ] && exec sleep 600
[ -e {folder}/fails ] && [ "$1" = n2 ] && {{ echo "no mount"; exit 3; }}
exit 0
"""
JOB = resources_pb2.JobSpec(
    name="a",
    command=["sleep", "600"],
    working_directory="/",
    min_nodes=1,
    max_nodes=2,
    curve=[resources_pb2.ScalingPoint(nodes=nodes, rate=nodes) for nodes in (1, 2)],
    backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
)


@pytest.mark.parametrize(("trouble", "reason"), [("fails", "ended with 3: no mount"), ("hangs", "within 4 s")])
def test_a_job_starts_on_the_others_and_the_node_comes_back_when_it_is_well(
    tmp_path: Path, trouble: str, reason: str
) -> None:
    check, commands = tmp_path / "check", RecordedCommands(tmp_path / "slurm")
    commands.folder.mkdir()
    check.write_text(_CHECK.format(folder=tmp_path))
    check.chmod(0o700)
    (tmp_path / trouble).touch()
    section = f'[scavenger.node_check]\nscript = "{check}"\nscript_seconds = 4\nretry_seconds = 8\n'
    with deployed(tmp_path / "up", settings(tmp_path, commands, sys.executable) + section) as system:
        job = submitted(system)
        wait_until(lambda: list(system.job(job).confirmed_nodes) == ["n1"], 90, "the job on the node that is well")
        wait_until(lambda: says(system.command("nodes").stderr, reason), 60, "the reason")
        assert "n2" not in system.job(job).confirmed_nodes
        (tmp_path / trouble).unlink()
        wait_until(lambda: "n2" in nodes(system), 90, "the node's return")


def says(said: str, reason: str) -> bool:
    """Whether it says that the node is left out, and why."""
    return "quarantined: n2" in said and reason in said


def nodes(system: Deployment) -> set[str]:
    return {node["name"] for node in system.json("nodes") if "quarantined" not in node}


def submitted(system: Deployment) -> str:
    stubs = system.stubs
    try:
        return stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[JOB]), timeout=60).jobs[0].id
    finally:
        stubs.close()
