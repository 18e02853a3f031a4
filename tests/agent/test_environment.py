"""What workers of an agent find in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.agent.environment import worker_environment
from tests.agent.running import RunningAgent
from tests.supervisor.running import supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

HERE = {"HOME": "/home/ada", "SLURM_JOB_ID": "7", "PBS_JOBID": "7.head", "PMI_RANK": "0"}


def test_the_placeholders_variables_are_hidden_and_the_jobs_win() -> None:
    found = worker_environment({**HERE, "A": "agent", "PATH": "/bin"}, {"A": "job"}, "/env/bin", 4)
    assert found == {"HOME": "/home/ada", "A": "job", "PATH": "/env/bin:/bin", "OMP_NUM_THREADS": "4"}
    assert worker_environment(HERE, {}, "/env/bin", 4)["PATH"] == f"/env/bin:{os.defpath}"
    assert worker_environment({}, {"PATH": "/job", "OMP_NUM_THREADS": "9"}, "/env/bin", 4) == {
        "PATH": "/job",
        "OMP_NUM_THREADS": "9",
    }


@pytest.mark.parametrize(
    ("agent", "slots", "usable", "threads"),
    [
        ({}, "1", 8, "8"),
        ({"NCPUS": "2", "OMP_NUM_THREADS": "2"}, "1", 8, "2"),
        ({"SLURM_CPUS_ON_NODE": "64"}, "4", 64, "16"),
        ({"SLURM_CPUS_ON_NODE": "64"}, "1", 2, "2"),
        ({"NCPUS": "2"}, "4", 8, "1"),
        ({"NCPUS": "many"}, "?", 3, "3"),
    ],
)
def test_workers_share_the_cpus_that_the_scheduler_gave(
    agent: dict[str, str], slots: str, usable: int, threads: str
) -> None:
    job = {"MALLETRAIN_SLOTS_PER_NODE": slots}
    assert worker_environment(agent, job, "/env/bin", usable)["OMP_NUM_THREADS"] == threads


@pytest.mark.processes
def test_an_agent_that_was_started_without_a_path_finds_python(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "OMP_NUM_THREADS")}
    agent = RunningAgent("n1", tmp_path, "127.0.0.1:9", 1.5, environment={**environment, "NCPUS": "1"})
    code = "import os, sys, time; print(sys.executable, os.environ['OMP_NUM_THREADS'], flush=True); time.sleep(60)"
    try:
        addresses = {"n1": agent.address}
        with supervised(
            tmp_path / "job",
            "n1",
            command=["python", "-c", code],
            backend="command",
            agents=addresses,
            certificate_file=certificate(tmp_path, "supervisor"),
        ) as job:
            wait_until(lambda: f"{Path(sys.executable).parent}/python 1" in job.said, 30, "the worker's word")
    finally:
        agent.close()


@pytest.mark.processes
def test_an_agent_leaves_before_the_time_limit_of_its_placeholder(tmp_path: Path) -> None:
    agent = RunningAgent("n1", tmp_path, "127.0.0.1:9", 1.5, "--stay", "1", "--installation", "0123abcd")
    try:
        assert agent.process.wait(30) == 0
        assert "node n1 is wanted back" in agent.said
    except subprocess.TimeoutExpired:
        pytest.fail(f"it stays: {agent.said}")
    finally:
        agent.close()
