"""Trainers on a node reach a Monitor on loopback of another machine: real Monitor, agent, trainer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.agent.report_forwarder import ReportForwarder
from malletrain.caller.credentials import owner_credential
from malletrain.common.environment import MONITOR_FOR_NODES
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.peer import Peer
from malletrain.tls.credentials import server_credentials
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.agent.running import agents
from tests.supervisor.running import supervised
from tests.support.certificates import certificate, secure_channel
from tests.support.job_secrets import job_secrets
from tests.support.ports import free_port
from tests.support.waiting import wait_until, wait_until_async

SERVE = "import sys; sys.argv[1:] = ['serve', 'monitor']; from malletrain.cli.entry import run; run()"
PROGRAM = """
import json, os, time
from malletrain.client import report
print(json.dumps(dict(os.environ)), flush=True)
for _ in range(3):
    report(5)
    time.sleep(0.05)
time.sleep(60)
"""
REPORT = "/malletrain.v1.MonitorService/Report"
Code = grpc.StatusCode


@contextmanager
def monitor(state_dir: Path) -> Iterator[tuple[str, str]]:
    """A Monitor as a process: its address, and its address for nodes."""
    address, for_nodes = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "MALLETRAIN_STATE_DIR": str(state_dir),
        "MALLETRAIN_ADDRESSES__MONITOR": address,
        "MALLETRAIN_ADDRESSES__MONITOR_FOR_NODES": for_nodes,
    }
    with (state_dir / "monitor.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: b'"serving"' in (state_dir / "monitor.log").read_bytes(), 30, "Monitor")
        yield address, for_nodes
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("with_tls", [True, False], ids=["", "as under version 0.1"])
@pytest.mark.processes
def test_a_trainer_on_a_node_reports_through_its_agent(tmp_path: Path, with_tls: bool) -> None:
    settings = Settings(state_dir=tmp_path)
    with (
        monitor(tmp_path) as (address, for_nodes),
        open_blocking_channel(
            Peer("monitor", address, tmp_path / "ca.pem", "monitor"), owner_credential(settings)
        ) as channel,
    ):
        stub = monitor_pb2_grpc.MonitorServiceStub(channel)
        with agents(tmp_path, "n1") as running:
            nodes = {"n1": running["n1"].address}
            # Monitor's own address is no use there.
            own = {"MALLETRAIN_MONITOR": "127.0.0.1:9", MONITOR_FOR_NODES: for_nodes}
            if with_tls:
                authority = str(settings.authority_file)
                own |= {"MALLETRAIN_MONITOR_WITH_TLS": "127.0.0.1:9", "MALLETRAIN_MONITOR_AUTHORITY": authority}
            with supervised(
                tmp_path / "job",
                "n1",
                command=[sys.executable, "-c", PROGRAM],
                backend="command",
                environment=own,
                agents=nodes,
                certificate_file=certificate(tmp_path, "supervisor"),
            ) as job:
                # As JobManager does; the sidecar reads it when it connects again.
                tokens = open_installation(settings, SystemClock()).tokens
                job_secrets(tokens=tokens).write(job.job_id, JobFolder(job.folder))

                def samples() -> int:
                    request = monitor_pb2.GetProgressRequest(job_ids=[job.job_id])
                    return sum(found.samples for found in stub.GetProgress(request, timeout=5).progress)

                wait_until(lambda: samples() == 15, 30, "15 samples at Monitor")
                said = (job.folder / "logs" / "n1.0.log").read_text()
                assert json.loads(said.splitlines()[0])["MALLETRAIN_MONITOR"] != "127.0.0.1:9"


@pytest.mark.processes
def test_monitors_address_for_nodes_asks_for_an_agents_certificate_and_for_the_token_of_a_job(tmp_path: Path) -> None:
    with monitor(tmp_path) as (_, for_nodes):
        found = open_installation(Settings(state_dir=tmp_path), SystemClock()).tokens
        job = found.sign("j000001", Role.JOB, 600.0, "j000001")[0]
        service = found.sign("scavenger", Role.SERVICE, 600.0, audience="monitor")[0]

        def code(role: str, token: str, method: str = "Report", folder: Path = tmp_path) -> grpc.StatusCode:
            shown = (("authorization", f"Bearer {token}"),) if token else ()
            with secure_channel(for_nodes, certificate(folder, role), "monitor") as channel:
                stub = monitor_pb2_grpc.MonitorServiceStub(channel)
                try:
                    if method == "Report":
                        list(stub.Report(iter(()), metadata=shown, timeout=5))
                    else:
                        stub.GetProgress(monitor_pb2.GetProgressRequest(), metadata=shown, timeout=5)
                except grpc.RpcError as error:
                    ended = error.code()
                    assert isinstance(ended, grpc.StatusCode)
                    return ended
                return Code.OK

        assert code("agent", job) is Code.OK
        assert code("agent", "") is Code.UNAUTHENTICATED
        assert code("supervisor", job) is Code.PERMISSION_DENIED
        assert code("agent", service, "GetProgress") is Code.PERMISSION_DENIED, "agents pass on reports only"
        assert code("agent", job, folder=tmp_path / "other") is Code.UNAVAILABLE, "another installation"
        with secure_channel(for_nodes, certificate(tmp_path, "agent"), "monitor") as channel:
            shown = (("authorization", f"Bearer {job}"),)
            broken = channel.stream_stream(REPORT)(iter([b"\xff no message"]), metadata=shown, timeout=5)
            with pytest.raises(grpc.RpcError):
                list(broken)
            assert broken.code() is Code.INVALID_ARGUMENT
        with grpc.insecure_channel(for_nodes) as channel, pytest.raises(grpc.RpcError):
            monitor_pb2_grpc.MonitorServiceStub(channel).GetProgress(monitor_pb2.GetProgressRequest(), timeout=5)


class FakeMonitor:
    """A server with Monitor's certificate, whose `Report` does what a test wants. Messages are bytes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.metadata: list[tuple[str, str | bytes]] = []
        self.half_closed = False
        self.ended = False
        self.code = Code.OK
        self.reads = True

    async def report(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.metadata = list(context.invocation_metadata())
        context.add_done_callback(lambda _: setattr(self, "ended", True))
        if not self.reads:
            await context.write(b"waiting")
            await asyncio.Event().wait()
        async for request in requests:
            self.received.append(request)
            await context.write(b"got " + request[:10])
        self.half_closed = True
        if self.code is not Code.OK:
            await context.abort(self.code, "as the test wants", (("more", "words"),))


@asynccontextmanager
async def forwarded(folder: Path) -> AsyncIterator[tuple[FakeMonitor, grpc.aio.Channel]]:
    """A fake Monitor, and a channel to the forwarder of an agent."""
    fake, server = FakeMonitor(), grpc.aio.server()
    handlers = {"Report": grpc.stream_stream_rpc_method_handler(fake.report)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("malletrain.v1.MonitorService", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(certificate(folder, "monitor")))
    await server.start()
    forwarder = ReportForwarder(certificate(folder, "agent"), print)
    async with grpc.aio.insecure_channel(forwarder.address_for(f"127.0.0.1:{port}", 0, with_tls=False)) as channel:
        yield fake, channel
    await forwarder.close()
    await server.stop(None)


async def test_bytes_the_token_and_the_end_of_a_side_pass_through_and_no_other_metadata(tmp_path: Path) -> None:
    async with forwarded(tmp_path) as (fake, channel):
        call = channel.stream_stream(REPORT)(metadata=(("authorization", "Bearer t"), ("x-other", "o")))
        await call.write(b"\xff no message")
        assert await call.read() == b"got \xff no messa"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Code.OK
        assert fake.half_closed
        assert fake.received == [b"\xff no message"]
        names = {name for name, _ in fake.metadata}
        assert ("authorization", "Bearer t") in fake.metadata
        assert "x-other" not in names


async def test_the_status_of_monitor_passes_through(tmp_path: Path) -> None:
    async with forwarded(tmp_path) as (fake, channel):
        fake.code = Code.INVALID_ARGUMENT
        call = channel.stream_stream(REPORT)()
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code(), caught.value.details()) == (Code.INVALID_ARGUMENT, "as the test wants")
        assert ("more", "words") in tuple(caught.value.trailing_metadata())


async def test_what_monitor_does_not_take_is_not_taken_from_the_trainer(tmp_path: Path) -> None:
    async with forwarded(tmp_path) as (fake, channel):
        fake.reads = False
        call = channel.stream_stream(REPORT)()
        assert await call.read() == b"waiting"
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 200:
                async with asyncio.timeout(1):
                    await call.write(bytes(1 << 20))
                sent += 1
        assert sent < 100, "MiB that wait somewhere"
        call.cancel()
        await wait_until_async(lambda: fake.ended, 10, "the end at Monitor")


async def test_nothing_but_reports_is_forwarded_and_a_monitor_that_is_away_is_said(tmp_path: Path) -> None:
    async with forwarded(tmp_path) as (_, channel):
        for method in ("/malletrain.v1.MonitorService/GetProgress", "/grpc.health.v1.Health/Check", "/x/y"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(method)(b"", timeout=5)
            assert caught.value.code() is Code.UNIMPLEMENTED
    forwarder = ReportForwarder(certificate(tmp_path, "agent"), print)
    async with grpc.aio.insecure_channel(
        forwarder.address_for(f"127.0.0.1:{free_port()}", 0, with_tls=False)
    ) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_stream(REPORT)(timeout=10).read()
        assert caught.value.code() is Code.UNAVAILABLE
    await forwarder.close()


async def test_a_server_that_is_not_monitor_gets_no_report(tmp_path: Path) -> None:
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", server_credentials(certificate(tmp_path, "allocator")))
    await server.start()
    forwarder = ReportForwarder(certificate(tmp_path, "agent"), print)
    async with grpc.aio.insecure_channel(forwarder.address_for(f"127.0.0.1:{port}", 0, with_tls=False)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_stream(REPORT)(timeout=10).read()
        assert caught.value.code() is Code.UNAVAILABLE
    await forwarder.close()
    await server.stop(None)


async def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        ReportForwarder(tmp_path / "none", print).address_for("monitor", 0, with_tls=False)


async def test_a_user_who_names_many_addresses_keeps_nobody_else_from_monitor(tmp_path: Path) -> None:
    forwarder = ReportForwarder(tmp_path / "none", print)
    known = forwarder.address_for("head:7000", 1000, with_tls=False)
    for number in range(4):
        forwarder.address_for(f"other{number}:1", 1001, with_tls=False)
    with pytest.raises(ValueError, match="at most"):
        forwarder.address_for("other5:1", 1001, with_tls=False)
    assert forwarder.address_for("head:7000", 1001, with_tls=False) == known
    assert forwarder.address_for("head:7001", 1000, with_tls=False)
    await forwarder.close()
