"""Workers on nodes that an agent serves: real supervisors, real agents, real trainings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.agent.running import agents
from tests.supervisor.running import supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).parent.parent / "supervisor" / "program.sh"


def test_a_worker_runs_where_its_agent_is_and_ends_with_the_supervisor(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", "n2") as running:
        addresses = {node: agent.address for node, agent in running.items()}
        shown = certificate(tmp_path, "supervisor")
        command = ["/bin/sh", str(PROGRAM)]
        with supervised(
            tmp_path / "job",
            "n1",
            command=command,
            backend="command",
            agents=addresses,
            certificate_file=shown,
        ) as job:
            job.agents.update(addresses)
            pid = wait_until(lambda: job.pids().get("n1"), 30, "the worker")
            assert psutil.Process(pid).ppid() == running["n1"].process.pid
            job.command("n2")
            wait_until(lambda: job.pids().get("n2") not in (None, 0) and "n1" not in job.pids(), 30, "the move to n2")
            assert not job.processes("n1")
            os.killpg(job.process.pid, signal.SIGKILL)
            wait_until(lambda: not job.processes(), 10, "the end of the workers with their supervisor")
        assert all(agent.process.poll() is None for agent in running.values())


def test_a_node_that_is_wanted_back_is_left_clean_even_by_workers_that_do_not_listen(tmp_path: Path) -> None:
    deaf = "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stray = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    script = tmp_path / "deaf.py"
    script.write_text(f"{deaf}{stray}open('up', 'w')\ntime.sleep(600)\n")
    with agents(tmp_path, "n1", "n2", grace=0.5) as running:
        addresses = {node: agent.address for node, agent in running.items()}
        shown = certificate(tmp_path, "supervisor")
        with supervised(
            tmp_path / "job",
            "n1",
            command=[sys.executable, str(script)],
            backend="command",
            agents=addresses,
            certificate_file=shown,
        ) as job:
            wait_until(lambda: (tmp_path / "job" / "up").exists() and len(job.processes("n1")) >= 2, 30, "a stray")
            running["n1"].process.send_signal(signal.SIGTERM)
            assert running["n1"].process.wait(10) == 0
            assert not job.processes("n1")
            assert not subprocess.run(["pgrep", "-f", str(script)], capture_output=True, check=False).stdout


HIDING = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["python", "-c", "import time; time.sleep(600)", sys.argv[1]], {})
    os._exit(0)
time.sleep(600)
"""


def test_a_process_that_has_left_its_session_and_its_environment_ends_with_the_node(tmp_path: Path) -> None:
    (tmp_path / "hide.py").write_text(HIDING)
    mark = f"hidden-{os.getpid()}"

    def hidden() -> list[psutil.Process]:
        listed = ((process, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        return [process for process, words in listed if mark in words and "sleep(600)" in "".join(words)]

    with (
        agents(tmp_path, "n1", grace=0.5) as running,
        supervised(
            tmp_path / "job",
            "n1",
            command=[sys.executable, str(tmp_path / "hide.py"), mark],
            backend="command",
            agents={"n1": running["n1"].address},
            certificate_file=certificate(tmp_path, "supervisor"),
        ) as job,
    ):
        found = wait_until(hidden, 30, "the hidden process")[0]
        wait_until(lambda: found.ppid() == running["n1"].process.pid, 30, "its adoption by the agent")
        assert found.pid not in job.processes()
        agent = psutil.Process(running["n1"].process.pid)
        wait_until(
            lambda: psutil.STATUS_ZOMBIE not in [child.status() for child in agent.children()],
            10,
            "the agent to have collected what was between the two",
        )
        running["n1"].process.send_signal(signal.SIGTERM)
        assert running["n1"].process.wait(10) == 0
        assert not found.is_running() or found.status() == psutil.STATUS_ZOMBIE
        # In a cgroup, workers that have not ended within their grace count, too.
        assert re.search(r"ended [1-9]\d* processes that workers have left behind", running["n1"].said)


@pytest.mark.horovod
def test_horovod_trains_across_agents_and_survives_the_loss_of_one(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", "n2") as running:
        addresses = {node: agent.address for node, agent in running.items()}
        shown = certificate(tmp_path, "supervisor")
        with supervised(tmp_path / "job", "n1", "n2", agents=addresses, certificate_file=shown) as job:
            job.wait_batch(2)
            workers = job.processes("n2")
            running["n2"].process.kill()
            wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), 10, "the end of n2's workers")
            batch = job.wait_batch(1)
            state = job.release("n2", grace=1.0)
            assert [host.name for host in state.commanded_hosts] == ["n1"]
            assert batch["before"] > 0
            job.wait_batch(1)
            job.stop(grace=10)
            assert job.outcome()["outcome"] == "STOPPED"
        assert not job.processes()
