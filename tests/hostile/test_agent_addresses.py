"""The supervisor of a job is its owner's process: where an agent takes its certificate is not for it to say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from malletrain.agent.registration import Registration, RegistryAddress
from malletrain.agent.report_forwarder import METHOD, SERVICE, ReportForwarder
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from malletrain.v1 import agent_pb2 as pb
from tests.support.certificates import certificate, node_certificate
from tests.support.waiting import wait_until_async

PATH = f"/{SERVICE}/{METHOD}"


async def report(forwarder: ReportForwarder, named: str) -> None:
    """Report as the worker of a job would that names a Monitor."""
    async with grpc.aio.insecure_channel(forwarder.address_for(named, 54_321, with_tls=False)) as channel:
        call = channel.stream_stream(PATH)()
        await call.write(b"x")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


@pytest.mark.parametrize("told", [True, False], ids=["told by the registry", "under an earlier Scavenger"])
async def test_an_agent_connects_to_no_address_that_a_job_names(tmp_path: Path, told: bool) -> None:
    reached: list[object] = []
    strangers = await asyncio.start_server(lambda *_: reached.append(1), "127.0.0.1", 0)
    monitors = await asyncio.start_server(lambda *_: reached.append(2), "127.0.0.1", 0)
    named, real = (f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in (strangers, monitors))
    forwarder = ReportForwarder(certificate(tmp_path, "agent"), print)
    registry = AgentRegistry(certificate(tmp_path, "scavenger"), lambda: None, monitor=real if told else None)
    address = f"127.0.0.1:{await registry.open('127.0.0.1', 0)}"
    heard: list[str] = []

    def hear(monitor: str) -> None:
        heard.append(monitor)
        forwarder.lead_only_to(monitor)

    registration = Registration(
        RegistryAddress(address, node_certificate(tmp_path, "n1")), lambda: 0, lambda: None, print, hear
    )
    running = asyncio.create_task(registration.run(pb.AgentIntroduction(node="n1", port=1)))
    try:
        await wait_until_async(lambda: "n1" in registry.present and (not told or bool(heard)), 30)
        reporting = asyncio.create_task(report(forwarder, named))
        await wait_until_async(lambda: bool(reached), 30, "a connection")
        assert set(reached) == ({2} if told else {1})
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await forwarder.close()
        await registry.close()
        for server in (strangers, monitors):
            server.close()


def test_where_no_monitor_listens_for_nodes_none_can_be_named(tmp_path: Path) -> None:
    forwarder = ReportForwarder(tmp_path / "none", print)
    forwarder.lead_only_to("")
    with pytest.raises(ValueError, match="no Monitor listens for nodes"):
        forwarder.address_for("stranger.example:443", 54_321, with_tls=False)
