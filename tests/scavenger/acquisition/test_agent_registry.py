"""Real agents report to a registry."""

from __future__ import annotations

import contextlib
import math
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry, wrong_clock
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1.agent_pb2_grpc import AgentRegistryServiceStub
from tests.agent.running import RunningAgent
from tests.support.certificates import certificate, node_certificate, secure_aio_channel
from tests.support.waiting import wait_until_async


@pytest.mark.processes
async def test_an_agent_is_there_until_its_node_is_wanted_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It says that it goes; it need not be missed.
    monkeypatch.setattr("malletrain.scavenger.acquisition.agent_registry.LOST_SECONDS", 3600)
    changes: list[None] = []
    registry = AgentRegistry(certificate(tmp_path, "scavenger"), lambda: changes.append(None))
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "n1" in registry.present, 30, "the agent")
        assert registry.present["n1"].address == agent.address
        placeholder = registry.present["n1"].placeholder
        agent.process.send_signal(signal.SIGTERM)
        await wait_until_async(lambda: "n1" not in registry.present, 10, "the agent to leave")
        await wait_until_async(
            lambda: [agent.placeholder for agent in registry.take_departed()] == [placeholder], 10, "its end"
        )
        assert changes
    finally:
        agent.close()
        await registry.close()


@pytest.mark.processes
async def test_an_agent_finds_the_registry_again_and_a_killed_one_is_missed(tmp_path: Path) -> None:
    shown = certificate(tmp_path, "scavenger")
    registry = AgentRegistry(shown, lambda: None)
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "n1" in registry.present, 30, "the agent")
        await registry.close()
        registry = AgentRegistry(shown, lambda: None)
        await registry.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in registry.present, 10, "the agent's return")
        agent.process.kill()
        await wait_until_async(lambda: "n1" not in registry.present, 10, "the agent to be missed")
    finally:
        agent.close()
        await registry.close()


class Ahead(SystemClock):
    """Of the system's clock, by some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return super().time() + self.seconds


@pytest.mark.processes
async def test_a_node_with_a_wrong_clock_is_not_well_but_not_once_it_has_been_here(tmp_path: Path) -> None:
    shown, clock = certificate(tmp_path, "scavenger"), Ahead(0.0)
    registry = AgentRegistry(shown, lambda: None, clock=clock, most_clock_seconds=20.0)
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    other: RunningAgent | None = None
    try:
        await wait_until_async(lambda: "n1" in registry.present, 30, "the agent")
        await registry.close()
        clock.seconds = 100.0
        registry = AgentRegistry(shown, lambda: None, clock=clock, most_clock_seconds=20.0)
        await registry.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in registry.present, 30, "the agent's return")
        assert registry.take_unfit() == {}
        other = RunningAgent("n2", tmp_path, f"127.0.0.1:{port}", grace=0.5)
        await wait_until_async(lambda: other is not None and other.process.poll() is not None, 30, "the other's end")
        (reason,) = registry.take_unfit().values()
        assert re.fullmatch(r"its clock is (9\d|100) s behind the head node's", reason)
        assert set(registry.present) == {"n1"}
    finally:
        agent.close()
        if other is not None:
            other.close()
        await registry.close()


def test_clocks() -> None:
    assert not wrong_clock(100.0, 130.0, 30.0)
    assert not wrong_clock(160.0, 130.0, 30.0)
    assert wrong_clock(99.0, 130.0, 30.0) == "its clock is 31 s behind the head node's"
    assert wrong_clock(4e9, 1e9, 30.0) == "its clock is 3000000000 s ahead of the head node's"
    assert not wrong_clock(0.0, 1e9, math.inf)


@pytest.mark.processes
async def test_an_agent_of_another_installation_is_not_let_in_and_lets_itself_in_nowhere_else(tmp_path: Path) -> None:
    registry = AgentRegistry(certificate(tmp_path / "other", "scavenger"), lambda: None)
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", grace=0.5)
    try:
        await wait_until_async(lambda: "Scavenger at" in agent.said, 30, "the refusal")
        right = AgentRegistry(certificate(tmp_path, "scavenger"), lambda: None)
        await registry.close()
        await right.open("127.0.0.1", port)
        await wait_until_async(lambda: "n1" in right.present, 10, "the agent where it belongs")
        assert not registry.present
        await right.close()
    finally:
        agent.close()


@pytest.mark.processes
async def test_an_agent_that_is_refused_for_long_leaves_its_node(tmp_path: Path) -> None:
    registry = AgentRegistry(certificate(tmp_path, "scavenger"), lambda: None)
    port = await registry.open("127.0.0.1", 0)
    agent = RunningAgent("n1", tmp_path, f"127.0.0.1:{port}", 0.5, certificate=node_certificate(tmp_path, "n2"))
    try:
        await wait_until_async(lambda: agent.process.poll() is not None, 90, "its end")
        assert agent.process.returncode == 0, agent.said
        assert "the certificate is that of another node than n1" in agent.said
        assert "the Scavenger has refused this agent for 15 s" in agent.said
        assert not registry.present
    finally:
        agent.close()
        await registry.close()


@asynccontextmanager
async def registry_stub(folder: Path, role: str) -> AsyncIterator[tuple[AgentRegistry, Any]]:
    """A registry, and a stub whose caller has the certificate of a role; of an agent, that of n1."""
    shown = node_certificate(folder, "n1") if role == "agent" else certificate(folder, role)
    registry = AgentRegistry(certificate(folder, "scavenger"), lambda: None)
    port = await registry.open("127.0.0.1", 0)
    try:
        async with secure_aio_channel(f"127.0.0.1:{port}", shown, "scavenger") as channel:
            yield registry, AgentRegistryServiceStub(channel)
    finally:
        await registry.close()


def introduction(node: str = "n1", port: int = 7, placeholder: str = "p1") -> pb.RegisterRequest:
    return pb.RegisterRequest(introduction=pb.AgentIntroduction(node=node, port=port, placeholder=placeholder))


async def code_of(call: Any) -> grpc.StatusCode:
    """The code with which a call ends."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.read()
    code = await call.code()
    assert isinstance(code, grpc.StatusCode)
    return code


async def refused(begin: Callable[[], Any]) -> Any:
    """A call that the server ends. gRPC itself calls one INTERNAL now and then that ends while its client writes."""
    for _ in range(3):
        call = begin()
        if await code_of(call) is not grpc.StatusCode.INTERNAL:
            break
    return call


async def test_only_agents_may_register(tmp_path: Path) -> None:
    for role in ("supervisor", "monitor", "scavenger"):
        async with registry_stub(tmp_path, role) as (registry, stub):
            call = await refused(lambda: stub.Register(iter([introduction()])))
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
            assert role in (await call.details() or "")
            assert not registry.present


@pytest.mark.parametrize(
    "request_",
    [
        None,
        pb.RegisterRequest(),
        pb.RegisterRequest(gone=pb.AgentGone()),
        introduction(node=""),
        introduction(node="n" * 257),
        introduction(port=0),
        introduction(port=65536),
        introduction(placeholder="p" * 257),
        pb.RegisterRequest(introduction=pb.AgentIntroduction(node="n1", port=7, version="v" * 65)),
    ],
)
async def test_an_introduction_that_can_not_be_used_is_refused(
    tmp_path: Path, request_: pb.RegisterRequest | None
) -> None:
    async with registry_stub(tmp_path, "agent") as (registry, stub):
        call = stub.Register(iter([] if request_ is None else [request_]))
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert not registry.present


async def test_a_second_introduction_ends_the_stream(tmp_path: Path) -> None:
    async with registry_stub(tmp_path, "agent") as (_, stub):
        assert await code_of(stub.Register(iter([introduction()] * 2))) is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_an_agent_of_a_later_version_tells_is_passed_over(tmp_path: Path) -> None:
    later = pb.RegisterRequest(introduction=pb.AgentIntroduction(node="n1", port=7, placeholder="p1", version="9.1.0"))
    unknown = pb.RegisterRequest.FromString(b"\xfa\x3f\x00")  # a request with number 1023
    async with registry_stub(tmp_path, "agent") as (registry, stub):
        call = stub.Register()
        for request in (later, unknown, pb.RegisterRequest(heartbeat=pb.AgentHeartbeat(workers=5))):
            await call.write(request)
        await wait_until_async(lambda: "n1" in registry.present and registry.present["n1"].workers == 5, 10, "it")
        assert registry.present["n1"].version == "9.1.0"
        await call.write(pb.RegisterRequest())
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_next_agent_of_a_node_replaces_the_one_before(tmp_path: Path) -> None:
    async with registry_stub(tmp_path, "agent") as (registry, stub):
        first, second = stub.Register(), stub.Register()
        await first.write(introduction(placeholder="p1"))
        await wait_until_async(lambda: "n1" in registry.present, 10, "the first")
        await second.write(introduction(placeholder="p2"))
        assert await code_of(first) is grpc.StatusCode.OK
        await wait_until_async(lambda: registry.present["n1"].placeholder == "p2", 10, "the second")
        assert [agent.placeholder for agent in registry.take_departed()] == ["p1"]
        second.cancel()


async def test_an_agent_that_does_not_read_is_told_to_leave_without_anyone_waiting(tmp_path: Path) -> None:
    async with registry_stub(tmp_path, "agent") as (registry, stub):
        call = stub.Register()
        await call.write(introduction())
        await wait_until_async(lambda: "n1" in registry.present, 10, "the agent")
        registry.ask_to_leave(["n1"])
        assert [entry.node for entry in registry.leaving] == ["n1"]
        response = await call.read()
        assert response.HasField("leave")
        await call.write(pb.RegisterRequest(gone=pb.AgentGone()))
        assert await code_of(call) is grpc.StatusCode.OK
        assert [agent.placeholder for agent in registry.take_departed()] == ["p1"]
