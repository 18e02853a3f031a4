"""Real agents report to a registry."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from malletrain.common.token_file import make_token
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from tests.agent.running import RunningAgent
from tests.support.waiting import wait_until_async


async def test_an_agent_is_there_until_its_node_is_wanted_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It says that it goes; it need not be missed.
    monkeypatch.setattr("malletrain.scavenger.acquisition.agent_registry._LOST_SECONDS", 3600)
    changes: list[None] = []
    registry = AgentRegistry(make_token(tmp_path / "token"), lambda: changes.append(None))
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "n1" in registry.present, 30, "the agent")
        assert registry.present["n1"].address == agent.address
        placeholder = registry.present["n1"].placeholder
        agent.process.send_signal(signal.SIGTERM)
        await wait_until_async(lambda: "n1" not in registry.present, 10, "the agent to leave")
        await wait_until_async(lambda: registry.take_departed() == [placeholder], 10, "its end")
        assert changes
    finally:
        agent.close()
        await registry.close()


async def test_an_agent_finds_the_registry_again_and_a_killed_one_is_missed(tmp_path: Path) -> None:
    token = make_token(tmp_path / "token")
    registry = AgentRegistry(token, lambda: None)
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "n1" in registry.present, 30, "the agent")
        await registry.close()
        registry = AgentRegistry(token, lambda: None)
        await registry.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in registry.present, 10, "the agent's return")
        agent.process.kill()
        await wait_until_async(lambda: "n1" not in registry.present, 10, "the agent to be missed")
    finally:
        agent.close()
        await registry.close()


async def test_who_has_another_token_is_not_let_in(tmp_path: Path) -> None:
    registry = AgentRegistry(b"another installation's token", lambda: None)
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "is served on" in agent.said, 30, "the agent")
        right = AgentRegistry(make_token(tmp_path / "token"), lambda: None)
        await registry.close()
        await right.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in right.present, 10, "the agent where it belongs")
        assert not registry.present
        await right.close()
    finally:
        agent.close()
