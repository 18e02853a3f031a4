"""The agent's server in this process: what happens to a session whose supervisor does not read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.agent.session import SupervisorSession
from malletrain.agent.supervisor_server import Send, SupervisorServer
from malletrain.v1 import agent_pb2 as pb
from malletrain.v1.agent_pb2_grpc import AgentServiceStub
from tests.support.certificates import certificate, secure_aio_channel
from tests.support.waiting import wait_until_async

UNKNOWN_REQUEST = b"\xfa\x3f\x00"
"""A request with number 1023, which this version does not have."""
LONG = pb.ControlWorkersResponse(start_failed=pb.WorkerStartFailed(error="e" * 10_000))


class Sessions:
    """The sessions that a server has opened, and what they send by."""

    def __init__(self) -> None:
        self.opened: list[tuple[SupervisorSession, Send]] = []

    def open(self, send: Send, owner: object = None) -> SupervisorSession:
        session = SupervisorSession("n1", "127.0.0.1", send, lambda monitor: monitor)
        self.opened.append((session, send))
        return session


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[SupervisorServer, Sessions, Any]]:
    """A server, its sessions, and a supervisor's stub."""
    sessions = Sessions()
    server = SupervisorServer(sessions.open, print)
    port = await server.start("127.0.0.1", certificate(folder, "agent"))
    async with secure_aio_channel(f"127.0.0.1:{port}", certificate(folder, "supervisor"), "agent") as channel:
        yield server, sessions, AgentServiceStub(channel)
    await server.stop(0)


async def test_a_supervisor_that_does_not_read_loses_its_session_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, sessions, stub):
        call = stub.ControlWorkers()
        await call.initial_metadata()
        session, send = sessions.opened[0]
        for _ in range(5000):
            send(LONG)
        server.poll()
        assert session.ended
        assert session not in server.sessions
        await call.write(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=1, job_id="none")))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_all(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def _read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_what_waits_is_sent_before_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, sessions, stub):
        call = stub.ControlWorkers()
        await call.initial_metadata()
        session, send = sessions.opened[0]
        for _ in range(100):
            send(LONG)
        session.report_leaving()
        await server.stop(5)
        found = [response.WhichOneof("response") async for response in call]
        assert found == ["start_failed"] * 100 + ["leaving"]
        assert await call.code() is grpc.StatusCode.OK


async def test_a_session_ends_with_its_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _, stub):
        call = stub.ControlWorkers()
        await call.initial_metadata()
        assert len(server.sessions) == 1
        call.cancel()

        def is_over() -> bool:
            server.poll()
            return not server.sessions

        await wait_until_async(is_over, 10, "the end of the session")


async def test_a_request_of_a_later_version_is_passed_over_and_one_without_content_ends_the_session(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (_, _, stub):
        call = stub.ControlWorkers()
        await call.write(pb.ControlWorkersRequest.FromString(UNKNOWN_REQUEST))
        await call.write(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id="none")))
        assert (await call.read()).swept.request == 7
        await call.write(pb.ControlWorkersRequest())
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
