"""Real agents report to a desk."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from malletrain.agent.wire import make_token
from malletrain.scavenger.acquisition.desk import AgentDesk
from tests.agent.running import RunningAgent
from tests.support.waiting import wait_until_async


async def test_an_agent_is_there_until_its_node_is_wanted_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It says that it goes; it need not be missed.
    monkeypatch.setattr("malletrain.scavenger.acquisition.desk._LOST_SECONDS", 3600)
    changes: list[None] = []
    desk = AgentDesk(make_token(tmp_path / "token"), lambda: changes.append(None))
    port = await desk.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "n1" in desk.present, 30, "the agent")
        assert desk.present["n1"].address == agent.address
        placeholder = desk.present["n1"].placeholder
        agent.process.send_signal(signal.SIGTERM)
        await wait_until_async(lambda: "n1" not in desk.present, 10, "the agent to leave")
        await wait_until_async(lambda: desk.gone() == [placeholder], 10, "its end")
        assert changes
    finally:
        agent.close()
        await desk.close()


async def test_an_agent_finds_the_desk_again_and_a_killed_one_is_missed(tmp_path: Path) -> None:
    token = make_token(tmp_path / "token")
    desk = AgentDesk(token, lambda: None)
    port = await desk.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "n1" in desk.present, 30, "the agent")
        await desk.close()
        desk = AgentDesk(token, lambda: None)
        await desk.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in desk.present, 10, "the agent's return")
        agent.process.kill()
        await wait_until_async(lambda: "n1" not in desk.present, 10, "the agent to be missed")
    finally:
        agent.close()
        await desk.close()


async def test_who_has_another_token_is_not_let_in(tmp_path: Path) -> None:
    desk = AgentDesk(b"another installation's token", lambda: None)
    port = await desk.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "is served on" in agent.said, 30, "the agent")
        right = AgentDesk(make_token(tmp_path / "token"), lambda: None)
        await desk.close()
        await right.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in right.present, 10, "the agent where it belongs")
        assert not desk.present
        await right.close()
    finally:
        agent.close()
