"""JobManager and supervisors of other versions: what they lack, and what they say that is not known here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from malletrain.job_manager.launching.supervisor_client import SupervisorClient
from malletrain.v1 import supervisor_pb2 as pb
from malletrain.v1 import supervisor_pb2_grpc

UNKNOWN_FIELD = b"\xfa\x3f\x03new"
"""Field 1023, of wire type 2, which no message has."""
UNKNOWN_PHASE = 99


class WithoutMethods(supervisor_pb2_grpc.SupervisorServiceServicer):
    """Answers UNIMPLEMENTED to every call."""


class OfLaterVersion(supervisor_pb2_grpc.SupervisorServiceServicer):
    """Says what only a later version knows, and something that is no version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def _state(self) -> pb.SupervisorState:
        known = pb.SupervisorState(
            job_id="j000001",
            commanded_sequence=4,
            confirmed_sequence=4,
            confirmed_hosts=["n1"],
            version=self.version,
        )
        # An enum is open in proto3: an unknown number arrives as it is.
        phase = bytes([2 << 3, UNKNOWN_PHASE])
        return pb.SupervisorState.FromString(known.SerializeToString() + phase + UNKNOWN_FIELD)

    async def WatchState(self, request: Any, context: Any) -> AsyncIterator[pb.WatchStateResponse]:
        yield pb.WatchStateResponse(state=self._state())

    async def SetHosts(self, request: Any, context: Any) -> pb.SetHostsResponse:
        return pb.SetHostsResponse(state=self._state())


@asynccontextmanager
async def client_of(
    folder: Path, servicer: supervisor_pb2_grpc.SupervisorServiceServicer
) -> AsyncIterator[SupervisorClient]:
    socket = folder / "socket"
    server = grpc.aio.server()
    supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    client = SupervisorClient("j000001", 1, socket, {})
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


async def test_one_that_lacks_the_methods_counts_as_one_that_does_not_answer(tmp_path: Path) -> None:
    async with client_of(tmp_path, WithoutMethods()) as client:
        assert [seen async for seen in client.watch()] == []
        assert await client.set_hosts(1, ("n1",), 1) is None
        assert not await client.release(("n1",), 0.0, 10.0)
        assert not await client.stop(0.0, 10.0)
        assert client.version == ""


async def test_fields_and_values_of_a_later_version_change_nothing_of_what_is_known(tmp_path: Path) -> None:
    async with client_of(tmp_path, OfLaterVersion("9.1.0")) as client:
        (seen,) = [seen async for seen in client.watch()]
        assert (seen.confirmed_sequence, seen.confirmed) == (4, frozenset({"n1"}))
        assert await client.set_hosts(4, ("n1",), 1) == seen
        assert client.version == "9.1.0"
        assert not client.ended


async def test_a_version_that_is_none_is_cut(tmp_path: Path) -> None:
    async with client_of(tmp_path, OfLaterVersion("v" * 10_000)) as client:
        assert [seen async for seen in client.watch()]
        assert client.version == "v" * 64
