"""The Scavenger's port for agents: who has too many connections or calls keeps no agent out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.runtime.admission.peers import PeerNames
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.limits import ServerLimits
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from malletrain.scavenger.acquisition.node_certificates import NodeCertificates
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1.agent_pb2_grpc import AgentRegistryServiceStub
from tests.support.certificates import certificate, secure_aio_channel
from tests.support.stranger import as_nobody, needs_another_account
from tests.support.waiting import wait_until_async

MAX = 16
LIMITS = ServerLimits(max_connections_per_peer=MAX, first_message_seconds=0.5)


@contextlib.asynccontextmanager
async def registry(folder: Path) -> AsyncIterator[tuple[AgentRegistry, int]]:
    # So that one connection can stand for many nodes, agents show the certificate that those of 0.1 share.
    certificate(folder, "agent")
    certificates = NodeCertificates(folder, SystemClock(), 3600, 60)
    found = AgentRegistry(certificate(folder, "scavenger"), lambda: None, limits=LIMITS, certificates=certificates)
    try:
        yield found, await found.open("127.0.0.1", 0)
    finally:
        await found.close()


def introduction(node: str) -> pb.RegisterRequest:
    return pb.RegisterRequest(introduction=pb.AgentIntroduction(node=node, port=7, placeholder=node))


async def register(stub: Any, node: str) -> Any:
    """A call of an agent that is there."""
    call = stub.Register()
    await call.write(introduction(node))
    await call.initial_metadata()
    return call


CONNECTS = """
connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) for _ in range(int(sys.argv[2]))]
for connection in connections:
    connection.settimeout(10)
closed = 0
for connection in connections[int(sys.argv[3]):]:
    try:
        closed += connection.recv(1) == b""
    except ConnectionError:
        closed += 1
    except TimeoutError:
        pass
print(closed)
"""


@needs_another_account
@pytest.mark.timeout(120)
async def test_connections_of_one_account_that_are_too_many_are_closed(tmp_path: Path) -> None:
    async with (
        registry(tmp_path) as (found, port),
        secure_aio_channel(f"127.0.0.1:{port}", certificate(tmp_path, "agent"), "scavenger") as channel,
    ):
        call = await register(AgentRegistryServiceStub(channel), "n1")
        closed = await asyncio.to_thread(as_nobody, CONNECTS, port, 10 * MAX, MAX)
        assert int(closed) >= 8 * MAX
        assert "n1" in found.present, "agents go on"
        call.cancel()


@pytest.mark.timeout(120)
async def test_calls_of_one_machine_are_bounded_and_those_of_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(["10.0.0.1"] * (MAX + 1) + ["10.0.0.2"])
    monkeypatch.setattr(PeerNames, "name", lambda *_: next(names))
    async with (
        registry(tmp_path) as (found, port),
        secure_aio_channel(f"127.0.0.1:{port}", certificate(tmp_path, "agent"), "scavenger") as channel,
    ):
        stub: Any = AgentRegistryServiceStub(channel)
        calls = [await register(stub, f"n{number}") for number in range(MAX)]
        refused = stub.Register()
        await refused.write(introduction("other"))
        assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"10.0.0.1 has {MAX} calls under way" in (await refused.details() or "")
        calls.append(await register(stub, "of-another-machine"))
        assert len(found.present) == MAX + 1
        for call in calls:
            call.cancel()


@pytest.mark.timeout(120)
async def test_a_call_that_says_nothing_ends(tmp_path: Path) -> None:
    async with (
        registry(tmp_path) as (_, port),
        secure_aio_channel(f"127.0.0.1:{port}", certificate(tmp_path, "agent"), "scavenger") as channel,
    ):
        stub: Any = AgentRegistryServiceStub(channel)
        assert await stub.Register().code() == grpc.StatusCode.DEADLINE_EXCEEDED
        late = await register(stub, "n1")
        await wait_until_async(lambda: not late.done(), 10, "that one that has introduced itself stays")
        late.cancel()


@pytest.mark.timeout(120)
async def test_a_handshake_that_never_ends_is_ended(tmp_path: Path) -> None:
    async with registry(tmp_path) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.setblocking(False)
            received = asyncio.get_running_loop().sock_recv(silent, 1)
            assert await asyncio.wait_for(received, 60) == b""


@pytest.mark.timeout(300)
@pytest.mark.long
async def test_agents_of_a_large_cluster_fit(tmp_path: Path) -> None:
    """More than `limits.max_calls`, each with a call of its own."""
    number = ServerLimits().max_calls + 200
    async with contextlib.AsyncExitStack() as stack:
        found, port = await stack.enter_async_context(registry(tmp_path))
        shown = certificate(tmp_path, "agent")
        calls = []
        for first in range(0, number, 200):
            channel = await stack.enter_async_context(secure_aio_channel(f"127.0.0.1:{port}", shown, "scavenger"))
            stub: Any = AgentRegistryServiceStub(channel)
            calls += await asyncio.gather(*(register(stub, f"n{first + index}") for index in range(200)))
        assert len(found.present) >= number
        for call in calls:
            call.cancel()
