"""By which address the feeds of other nodes reach those of a node with an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.agent.session import SupervisorSession
from malletrain.common import environment as env
from malletrain.v1 import agent_pb2 as pb
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({env.FEED_PEERS: "/feeds", env.NODE_ADDRESS: "head"}, "10.0.0.7"),
        ({}, "none"),
    ],
)
def test_a_worker_whose_feed_shares_is_told_the_address_of_its_agent(
    tmp_path: Path, given: dict[str, str], told: str
) -> None:
    sent: list[pb.ControlWorkersResponse] = []
    session = SupervisorSession("n1", "127.0.0.1", sent.append, str, address="10.0.0.7")
    variables = {env.JOB_ID: "j000001", env.JOB_DIR: str(tmp_path), env.NODE: "n1#0", **given}
    words = ["sh", "-c", f"echo told ${{{env.NODE_ADDRESS}:-none}}"]
    folder, log = str(tmp_path), tmp_path / "log"
    start = pb.StartWorker(worker=1, command=words, folder=folder, environment=variables, log=str(log))
    session.handle(pb.ControlWorkersRequest(start=start))
    session.handle(pb.ControlWorkersRequest(start_code=pb.StartCode(worker=1)))
    try:
        wait_until(lambda: "told" in log.read_text(), 20, "what the worker was told")
        assert log.read_text().split()[-1] == told
    finally:
        session.kill()
