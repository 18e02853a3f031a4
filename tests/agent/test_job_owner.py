"""As whom an agent runs workers: a real agent of root, and supervisors with certificates of one job."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import psutil
import pytest

from malletrain.agent.environment import JobOwner, owner_of
from malletrain.common import environment as env
from malletrain.common.accounts import AccountError, account_named
from malletrain.runtime.access.pki import issue_to_job
from malletrain.runtime.clock import SystemClock
from malletrain.tls.names import PeerJob
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1.agent_pb2_grpc import AgentServiceStub
from tests.agent.running import RunningAgent, agents
from tests.support.certificates import certificate, secure_channel
from tests.support.everybody import as_user, folder_of_everybody, python_of_everybody
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another account")
ANN, BOB = "www-data", "games"
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def everybody() -> Iterator[Path]:
    with folder_of_everybody() as folder:
        yield folder


@pytest.fixture(scope="module")
def agent(everybody: Path) -> Iterator[RunningAgent]:
    (everybody / "state").mkdir(mode=0o700)
    python = str(python_of_everybody(everybody, ANN))
    running = RunningAgent("n1", everybody / "state", "127.0.0.1:9", 1.5, python=python)
    yield running
    running.close()


def job_certificate(agent_state: Path, job_id: str, user_id: int) -> Path:
    path = agent_state / f"{job_id}.{user_id}.pem"
    path.write_text(issue_to_job(agent_state, job_id, user_id, SystemClock(), 3600.0))
    path.chmod(0o600)
    return path


def own_folder(above: Path, user: str, name: str) -> Path:
    account = account_named(user)
    folder = above / name
    folder.mkdir(mode=0o700)
    os.chown(folder, account.user_id, account.group_id)
    return folder


def start(job_id: str, folder: Path, command: list[str], worker: int = 1) -> pb.ControlWorkersRequest:
    environment = {env.JOB_ID: job_id, env.JOB_DIR: str(folder), env.NODE: "n1"}
    return pb.ControlWorkersRequest(
        start=pb.StartWorker(
            worker=worker, command=command, folder=str(folder), environment=environment, log=str(folder / "log")
        )
    )


class Session:
    """A supervisor's session with an agent."""

    def __init__(self, agent: RunningAgent, shown: Path) -> None:
        self.channel = secure_channel(agent.address, shown, "agent")
        self._queue: SimpleQueue[pb.ControlWorkersRequest | None] = SimpleQueue()
        self.call: Any = AgentServiceStub(self.channel).ControlWorkers(iter(self._queue.get, None))

    def send(self, request: pb.ControlWorkersRequest) -> None:
        self._queue.put(request)

    def next(self, kind: str) -> Any:
        return getattr(next(response for response in self.call if response.HasField(kind)), kind)

    def code(self) -> grpc.StatusCode:
        """How the agent ends it."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        return self.call.code()

    def close(self) -> None:
        self._queue.put(None)
        self.channel.close()


@needs_root
def test_the_certificate_says_as_whom_workers_run(everybody: Path, agent: RunningAgent) -> None:
    ann = account_named(ANN)
    folder = own_folder(everybody, ANN, "j000001")
    session = Session(agent, job_certificate(everybody / "state", "j000001", ann.user_id))
    session.send(start("j000001", folder, ["/bin/sh", "-c", "id -u; setsid sleep 600 & sleep 600"]))
    worker = psutil.Process(session.next("started").pid)
    session.send(pb.ControlWorkersRequest(start_code=pb.StartCode(worker=1)))
    wait_until(lambda: f"{ann.user_id}\n" in (folder / "log").read_text(), 30, "its word")
    wait_until(lambda: len(worker.children(recursive=True)) == 2, 30, "its children")
    children = worker.children(recursive=True)
    assert {process.username() for process in (worker, *children)} == {ANN}
    session.send(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id="j000001")))
    assert session.next("swept").request == 7
    assert not any(process.is_running() and process.status() != "zombie" for process in (worker, *children))
    session.close()


@needs_root
def test_a_supervisor_speaks_for_its_own_job_only(everybody: Path, agent: RunningAgent) -> None:
    ann, bob = account_named(ANN), account_named(BOB)
    folder = own_folder(everybody, BOB, "j000003")
    victim = Session(agent, job_certificate(everybody / "state", "j000003", bob.user_id))
    victim.send(start("j000003", folder, ["/bin/sleep", "600"]))
    pid = victim.next("started").pid
    shown = job_certificate(everybody / "state", "j000002", ann.user_id)
    for request in (
        start("j000003", own_folder(everybody, ANN, "a"), ["/bin/true"]),
        pb.ControlWorkersRequest(sweep=pb.SweepJob(request=1, job_id="j000003")),
    ):
        session = Session(agent, shown)
        session.send(request)
        assert session.code() is Code.INVALID_ARGUMENT
        assert "the job of the certificate" in session.call.details()
        session.close()
    assert psutil.Process(pid).is_running()
    victim.close()


@needs_root
def test_a_process_of_another_user_that_looks_like_the_jobs_is_left_alone(everybody: Path, agent: RunningAgent) -> None:
    ann = account_named(ANN)
    folder = own_folder(everybody, ANN, "j000004")
    marks = {env.JOB_ID: "j000004", env.JOB_DIR: str(folder), env.NODE: "n1"}
    stranger = psutil.Popen([*as_user(BOB), "sleep", "600"], env={**os.environ, **marks})
    try:
        session = Session(agent, job_certificate(everybody / "state", "j000004", ann.user_id))
        session.send(start("j000004", folder, ["/bin/sleep", "600"]))
        session.next("started")
        session.send(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=1, job_id="j000004")))
        session.next("swept")
        assert stranger.poll() is None
        session.close()
    finally:
        stranger.kill()
        stranger.wait()


@needs_root
def test_a_user_whom_the_node_does_not_know_is_refused(everybody: Path, agent: RunningAgent) -> None:
    session = Session(agent, job_certificate(everybody / "state", "j000005", 1_234_567))
    assert session.code() is Code.FAILED_PRECONDITION
    assert "user id 1234567 has no account" in session.call.details()
    session.close()


@needs_root
def test_the_certificate_of_all_supervisors_runs_workers_as_the_agent(everybody: Path, agent: RunningAgent) -> None:
    session = Session(agent, certificate(everybody / "state", "supervisor"))
    folder = everybody / "shared"
    folder.mkdir()
    session.send(start("j000006", folder, ["/bin/sleep", "600"]))
    assert psutil.Process(session.next("started").pid).username() == "root"
    session.close()


def test_an_agent_that_is_not_root_runs_its_own_jobs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert owner_of(None) is None
    assert owner_of(PeerJob("j000001", 1000)) == JobOwner("j000001", None)
    with pytest.raises(AccountError, match="the agent is not root"):
        owner_of(PeerJob("j000001", 1001))


def test_an_agent_leaves_while_a_supervisor_keeps_asking_for_workers(tmp_path: Path) -> None:
    with agents(tmp_path / "state", "n1", grace=0.5) as running:
        agent = running["n1"]
        session = Session(agent, certificate(tmp_path / "state", "supervisor"))
        session.send(start("j000001", tmp_path, ["/bin/sleep", "600"]))
        session.next("started")
        ended = threading.Event()

        def flood() -> None:
            for number in itertools.count(2):
                session.send(start("j000001", tmp_path, ["/bin/sleep", "600"], number))
                if ended.wait(0.005):
                    return

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            agent.process.send_signal(signal.SIGTERM)
            assert agent.process.wait(20) == 0
        finally:
            ended.set()
            flooding.join()
        session.close()


def test_a_worker_that_does_not_read_its_start_does_not_stop_the_agent(tmp_path: Path) -> None:
    with agents(tmp_path / "state", "n1", grace=0.5) as running:
        session = Session(running["n1"], certificate(tmp_path / "state", "supervisor"))
        session.send(start("j000001", tmp_path, ["/bin/sleep", "600"]))
        worker = psutil.Process(session.next("started").pid)
        worker.suspend()
        large = {"LARGE": "x" * 200_000}
        session.send(pb.ControlWorkersRequest(start_code=pb.StartCode(worker=1, environment=large)))
        assert session.next("ended").worker == 1
        session.send(start("j000001", tmp_path, ["/bin/sleep", "600"], 2))
        assert session.next("started").worker == 2
        session.close()
