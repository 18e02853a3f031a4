"""Standby processes of agents: real agents, real trainings, and owners."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from malletrain.agent.agent import usual_environment
from malletrain.agent.environment import worker_environment
from malletrain.agent.session import SupervisorSession
from malletrain.common import environment as env
from malletrain.common.accounts import account_named
from malletrain.v1 import agent_pb2 as pb
from tests.agent.running import RunningAgent, agents
from tests.agent.test_job_owner import ANN, Session, job_certificate, own_folder, start
from tests.common.standby.keeping import is_forked, kept, small_environment
from tests.supervisor.running import supervised
from tests.support.certificates import certificate
from tests.support.everybody import folder_of_everybody, python_of_everybody
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

PATIENCE = 120.0
SlowStandby = tuple[SupervisorSession, list[pb.ControlWorkersResponse], pb.ControlWorkersRequest]
_READY = re.compile(r"standby process (\d+) is ready")


def wait_standby(agent: RunningAgent, number: int = 1) -> psutil.Process:
    """Wait until so many standby processes have been ready; the newest one."""
    wait_until(lambda: len(_READY.findall(agent.said)) >= number, PATIENCE, f"a standby process: {agent.said}")
    return psutil.Process(int(_READY.findall(agent.said)[-1]))


def test_a_standby_process_has_what_a_job_will_have_as_far_as_it_is_known() -> None:
    found = usual_environment({"PATH": "/bin", "SLURM_JOB_ID": "7", "NCPUS": "1"}, None)
    assert found["PYTHONUNBUFFERED"] == "1"
    assert found["OMP_NUM_THREADS"] == "1"
    assert "SLURM_JOB_ID" not in found


@pytest.mark.horovod
def test_workers_of_an_agent_are_forked_unless_the_job_is_started_cold(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", standby_mib=2048) as running:
        agent = running["n1"]
        addresses, shown = {"n1": agent.address}, certificate(tmp_path, "supervisor")
        standby = wait_standby(agent)
        with supervised(tmp_path / "job", "n1", agents=addresses, certificate_file=shown) as job:
            job.wait_confirmed()
            job.wait_batch(1)
            worker = psutil.Process(job.pids()["n1"])
            assert is_forked(worker.pid), agent.said
            assert worker.ppid() == agent.process.pid
            os.kill(worker.pid, signal.SIGKILL)
            assert job.outcome()["outcome"] == "FAILED"
        assert "new interpreter" not in agent.said
        options = {"agents": addresses, "certificate_file": shown}
        with supervised(tmp_path / "cold", "n1", cold_start=True, **options) as job:  # type: ignore[arg-type]
            pid = wait_until(lambda: job.pids().get("n1"), PATIENCE, "the worker")
            assert not is_forked(pid)
        assert standby.is_running()
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(10) == 0
        assert not standby.is_running()


def test_nothing_is_left_of_a_standby_process_whose_agent_is_killed(tmp_path: Path) -> None:
    with agents(tmp_path, "n1", standby_mib=2048) as running:
        agent = psutil.Process(running["n1"].process.pid)
        wait_until(agent.children, PATIENCE, "the standby process")
        children = agent.children()
        agent.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []


def test_a_worker_that_waits_for_a_standby_process_can_be_killed_and_swept(slow_standby: SlowStandby) -> None:
    session, sent, request = slow_standby
    for number in (1, 2, 3):
        request.start.worker = number
        session.handle(request)
        session.poll()
    assert (len(session), session.worker_pids, sent) == (3, [], [])
    session.handle(pb.ControlWorkersRequest(kill=pb.KillWorker(worker=2)))
    session.handle(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id="another")))
    assert [answer.ended.worker for answer in sent if answer.HasField("ended")] == [2]
    session.handle(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=8, job_id="j000001")))
    assert [answer.ended.worker for answer in sent if answer.HasField("ended")] == [2, 1, 3]
    assert {answer.ended.exit_status for answer in sent if answer.HasField("ended")} == {-signal.SIGKILL}
    session.poll()
    assert len(session) == 0


def test_a_worker_waits_for_no_standby_process_once_the_node_is_wanted_back(slow_standby: SlowStandby) -> None:
    session, sent, request = slow_standby
    session.handle(request)
    session.report_leaving()
    session.poll()
    assert [answer.WhichOneof("response") for answer in sent] == ["leaving", "start_failed"]


@pytest.fixture
def slow_standby(tmp_path: Path) -> Iterator[SlowStandby]:
    """A session whose standby process is not ready for ten minutes, what it sends, and a request for a worker."""
    config, packages = small_environment(tmp_path / "environment")
    (packages / "slow.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "script.py").write_text("import time\ntime.sleep(600)\n")
    sent: list[pb.ControlWorkersResponse] = []
    variables = worker_environment(os.environ, env.TRAINER_DEFAULTS, "/bin", 1, None)
    with kept(replace(config, environment=variables, modules=("slow",))) as running:
        running.tick()
        session = SupervisorSession("n1", "127.0.0.1", sent.append, str, standby=running.manager)
        request = start("j000001", tmp_path, [config.interpreter, "script.py"])
        request.start.warm = True
        request.start.environment.update(env.TRAINER_DEFAULTS)
        yield session, sent, request


@pytest.fixture
def roots_agent() -> Iterator[tuple[Path, RunningAgent]]:
    with folder_of_everybody() as everybody:
        (everybody / "state").mkdir(mode=0o700)
        python = str(python_of_everybody(everybody, ANN))
        running = RunningAgent("n1", everybody / "state", "127.0.0.1:9", 1.5, python=python, standby_mib=2048)
        yield everybody, running
        running.close()


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another account")
def test_an_owners_standby_process_is_the_owners_and_ends_with_the_session(
    roots_agent: tuple[Path, RunningAgent],
) -> None:
    everybody, agent = roots_agent
    ann = account_named(ANN)
    folder = own_folder(everybody, ANN, "j000001")
    roots = wait_standby(agent)
    session = Session(agent, job_certificate(everybody / "state", "j000001", ann.user_id))
    (folder / "wait.py").write_text("import time; time.sleep(600)")
    request = start("j000001", folder, ["python", "wait.py"])
    request.start.warm = True
    request.start.environment["PYTHONUNBUFFERED"] = "1"
    session.send(request)
    assert is_forked(session.next("started").pid), agent.said
    wait_until(lambda: not roots.is_running(), PATIENCE, "the end of root's own")
    standby = wait_standby(agent, 2)
    assert standby.username() == ANN
    request.start.worker = 2
    session.send(request)
    forked = psutil.Process(session.next("started").pid)
    assert is_forked(forked.pid), agent.said
    assert forked.username() == ANN
    assert forked.ppid() == agent.process.pid
    assert (Path(f"/proc/{forked.pid}/cwd")).readlink() == folder
    status = Path(f"/proc/{forked.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Umask:\t0077" in status
    session.send(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id="j000001")))
    assert session.next("swept").request == 7
    wait_until(lambda: not psutil.pid_exists(forked.pid), 10, "its end")
    session.close()
    _, alive = psutil.wait_procs([standby], timeout=30)
    assert alive == []
