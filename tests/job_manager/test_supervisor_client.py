"""What comes of calls to a supervisor when the connection is closed, as it is once the supervisor has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from malletrain.job_manager.launching.supervisor_client import SupervisorClient
from malletrain.v1 import supervisor_pb2 as pb
from malletrain.v1 import supervisor_pb2_grpc
from tests.job_manager.test_supervisors_of_other_versions import client_of


class Silent(supervisor_pb2_grpc.SupervisorServiceServicer):
    """Answers nothing."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def _never(self) -> None:
        self.called.set()
        await asyncio.Event().wait()

    async def WatchState(self, request: Any, context: Any) -> AsyncIterator[pb.WatchStateResponse]:
        await self._never()
        yield pb.WatchStateResponse()

    async def SetHosts(self, request: Any, context: Any) -> Any:
        await self._never()

    async def ReleaseHosts(self, request: Any, context: Any) -> Any:
        await self._never()

    async def Stop(self, request: Any, context: Any) -> Any:
        await self._never()


async def _watched(client: SupervisorClient) -> list[object]:
    return [seen async for seen in client.watch()]


CALLS: dict[str, Callable[[SupervisorClient], Coroutine[Any, Any, object]]] = {
    "watch": _watched,
    "set_hosts": lambda client: client.set_hosts(1, ("n1",), 1),
    "release": lambda client: client.release(("n1",), 1.0, 60.0),
    "stop": lambda client: client.stop(1.0, 60.0, 30.0),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_on_a_connection_that_is_closed_has_no_answer_and_is_not_cancelled(
    tmp_path: Path, name: str
) -> None:
    silent = Silent()
    async with client_of(tmp_path, silent) as client:
        calling = asyncio.create_task(CALLS[name](client))
        async with asyncio.timeout(10):
            await silent.called.wait()
            await client.close()
            assert not await calling


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled_is_cancelled(tmp_path: Path, name: str) -> None:
    silent = Silent()
    async with client_of(tmp_path, silent) as client:
        calling = asyncio.create_task(CALLS[name](client))
        async with asyncio.timeout(10):
            await silent.called.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
