"""An agent's sweeps go on in threads, and its event loop is watched from one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from malletrain.agent.agent import StandstillWatch
from malletrain.agent.session import SupervisorSession
from malletrain.agent.sweeps import SweepsInThreads
from malletrain.common import environment as env
from malletrain.common.tasks import DEFECT_STATUS
from malletrain.v1 import agent_pb2 as pb
from tests.support.certificates import certificate
from tests.support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.processes


async def test_a_sweep_keeps_nobody_waiting_but_workers_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, threads = threading.Event(), list[str]()

    def slow(job_id: str, *_: object) -> list[int]:
        threads.append(job_id)
        assert threading.current_thread() is not threading.main_thread()
        assert ended.wait(60)
        return []

    monkeypatch.setattr("malletrain.agent.session.kill_workers", slow)
    said: list[str] = []
    sweeps, sent = SweepsInThreads(said.append), list[pb.ControlWorkersResponse]()
    session = SupervisorSession("n1", "head", sent.append, lambda _: "", sweeps=sweeps)
    session.handle(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id="j000001", node="n1")))
    await wait_until_async(lambda: threads, 30, "the sweep")
    for number, job_id in ((1, "j000001"), (2, "j000002")):
        start = pb.StartWorker(worker=number, command=["/bin/sleep", "600"], folder="/", log=str(tmp_path / "log"))
        start.environment.update({env.JOB_ID: job_id, env.JOB_DIR: str(tmp_path)})
        session.handle(pb.ControlWorkersRequest(start=start))
    try:
        assert [answer.started.worker for answer in sent] == [2], "it would be ended by the sweep"
        ended.set()
        await wait_until_async(lambda: any(answer.HasField("swept") for answer in sent), 30, "the answer")
        await wait_until_async(lambda: not sweeps.is_under_way("j000001"), 30, "its end")
        session.poll()
        assert [answer.started.worker for answer in sent if answer.HasField("started")] == [2, 1]
        assert said == []
    finally:
        ended.set()
        session.kill()


async def test_a_loop_that_turns_is_left_alone_and_one_that_stands_still_is_noticed() -> None:
    noticed = threading.Event()
    watch = StandstillWatch(noticed.set, look_seconds=0.002, max_looks=200)
    for _ in range(20):
        await asyncio.sleep(0.002)
    assert not noticed.is_set()
    assert noticed.wait(30), "on the event loop, which stands still by this"
    watch.close()


_AGENT = """
import runpy, sys, time
from malletrain.agent import agent
Watch = agent.StandstillWatch
agent.StandstillWatch = lambda noticed: Watch(noticed, 0.02, 10)
async def stuck(self):
    print("stuck", file=sys.stderr, flush=True)
    time.sleep(600)
agent.Agent._poll = stuck
runpy.run_module("malletrain.agent", run_name="__main__")
"""


@pytest.mark.timeout(120)
def test_an_agent_whose_event_loop_stands_still_leaves_its_node(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _AGENT, "--node", "n1", "--head", "127.0.0.1:9"]
    shown, log = str(certificate(tmp_path, "agent")), tmp_path / "agent.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--certificate", shown], stderr=output)
    try:
        wait_until(lambda: "stuck" in log.read_text(), 60, "that it is stuck")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == DEFECT_STATUS
        assert "the event loop stands still" in log.read_text()
    finally:
        process.kill()
        process.wait()
