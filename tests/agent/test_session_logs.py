"""Whose logs a session looks at: those of its workers, until the last one that writes a log has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.agent.session import SupervisorSession
from malletrain.common import environment as env
from malletrain.v1 import agent_pb2 as pb
from tests.support.waiting import wait_until


class Watched:
    """Stands for what writes the times of logs; keeps what it is told."""

    def __init__(self, *_: object) -> None:
        self.said: list[tuple[str, str]] = []

    def watch(self, *logs: Path) -> None:
        self.said += [("watch", log.name) for log in logs]

    def forget(self, log: Path) -> None:
        self.said.append(("forget", log.name))

    def close(self) -> None:
        pass


def test_a_log_is_forgotten_when_all_its_workers_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setattr("malletrain.agent.session.LogTimesWriter", lambda *_: watched)
    session = SupervisorSession("n1", "head", lambda _: None, lambda _monitor, _tls: "")
    for number, log in ((1, "a.log"), (2, "b.log"), (3, "b.log")):
        start = pb.StartWorker(worker=number, command=["/bin/sleep", "600"], folder="/", log=str(tmp_path / log))
        start.environment.update({env.JOB_ID: "j000001", env.JOB_DIR: str(tmp_path)})
        session.handle(pb.ControlWorkersRequest(start=start))

    def forgotten(log: str) -> bool:
        session.poll()
        return ("forget", log) in watched.said

    def kill(number: int) -> None:
        session.handle(pb.ControlWorkersRequest(kill=pb.KillWorker(worker=number)))

    try:
        kill(2)
        kill(1)
        wait_until(lambda: forgotten("a.log") and len(session) == 1 and not session.delivers, 20, "the end of two")
        assert not forgotten("b.log"), "another worker writes it"
        kill(3)
        wait_until(lambda: forgotten("b.log"), 20, "the end of the third")
    finally:
        session.kill()
