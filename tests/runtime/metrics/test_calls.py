"""Calls to a real server, as they are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.errors import NotFoundError
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import profiler_pb2, profiler_pb2_grpc
from tests.support.access import CREDENTIAL, checked
from tests.support.channels import plain_channel
from tests.support.metrics import read
from tests.support.stand_ins import serve
from tests.support.waiting import wait_until_async

NAME = "malletrain.v1.ProfilerService"


class Moody(profiler_pb2_grpc.ProfilerServiceServicer):
    """Answers, refuses or fails as the name of the job says; its stream gives one message and then lasts."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def GetProfile(self, request: Any, context: Any) -> profiler_pb2.GetProfileResponse:
        if request.job_id == "missing":
            raise NotFoundError("there is none")
        if request.job_id == "defect":
            raise RuntimeError("a defect")
        if request.job_id == "slow":
            await asyncio.Event().wait()
        return profiler_pb2.GetProfileResponse()

    async def WatchProfiles(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield profiler_pb2.WatchProfilesResponse()
        await self.may_end.wait()


@asynccontextmanager
async def serving(servicer: Moody) -> AsyncIterator[tuple[ServiceMetrics, str]]:
    metrics = ServiceMetrics("127.0.0.1:1")
    async with serve(servicer, tls=False, metrics=metrics) as address:
        yield metrics, address


async def code_of(stub: Any, job_id: str) -> str:
    try:
        await stub.GetProfile(profiler_pb2.GetProfileRequest(job_id=job_id), timeout=0.3 if job_id == "slow" else 10)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_calls_count_by_their_code() -> None:
    async with serving(Moody()) as (metrics, address), plain_channel(address, CREDENTIAL) as channel:
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        codes = [await code_of(stub, job) for job in ("a", "b", "missing", "defect", "slow")]
        assert codes == ["OK", "OK", "NOT_FOUND", "INTERNAL", "DEADLINE_EXCEEDED"]
        await until(metrics, ("malletrain_rpc_handled_total", "CANCELLED", "GetProfile", NAME), 1)
        found = await read(metrics)
        assert found["malletrain_rpc_seconds_count", "GetProfile", NAME] == 5
        count = "malletrain_rpc_handled_total"
        counted = {key[1]: value for key, value in found.items() if key[0] == count and key[2] == "GetProfile"}
        assert counted == {"OK": 2, "NOT_FOUND": 1, "INTERNAL": 1, "CANCELLED": 1}
        assert found["malletrain_rpc_seconds_sum", "GetProfile", NAME] > 0.2


async def test_calls_that_are_refused_count_too() -> None:
    async with serving(Moody()) as (metrics, address), plain_channel(address, FixedToken("x.y.z")) as channel:
        assert await code_of(profiler_pb2_grpc.ProfilerServiceStub(channel), "a") == "UNAUTHENTICATED"
        # The status may arrive before the call has ended here.
        await until(metrics, ("malletrain_rpc_handled_total", "UNAUTHENTICATED", "GetProfile", NAME), 1)


async def test_streams_count_while_they_are_open_and_at_their_end() -> None:
    servicer = Moody()
    opened = ("malletrain_rpc_open_streams", "WatchProfiles", NAME)
    ended = ("malletrain_rpc_handled_total", "OK", "WatchProfiles", NAME)
    cancelled = ("malletrain_rpc_handled_total", "CANCELLED", "WatchProfiles", NAME)
    async with serving(servicer) as (metrics, address), plain_channel(address, CREDENTIAL) as channel:
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        streams = [stub.WatchProfiles(profiler_pb2.WatchProfilesRequest()) for _ in range(2)]
        for stream in streams:
            await stream.read()
        found = await read(metrics)
        assert found[opened] == 2
        assert ended not in found
        streams[0].cancel()
        await until(metrics, cancelled, 1)
        servicer.may_end.set()
        assert await streams[1].read() is grpc.aio.EOF
        await until(metrics, ended, 1)
        found = await read(metrics)
        assert found[opened] == 0
        # A stream may last for days: its duration is no latency.
        assert ("malletrain_rpc_seconds_count", "WatchProfiles", NAME) not in found


async def until(metrics: ServiceMetrics, key: tuple[str, ...], value: float) -> None:
    async with asyncio.timeout(10):
        while (await read(metrics)).get(key) != value:
            await asyncio.sleep(0.02)


async def test_names_of_unknown_methods_make_no_time_series() -> None:
    async with serving(Moody()) as (metrics, address), plain_channel(address, CREDENTIAL) as channel:
        for index in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                await channel.unary_unary(f"/malletrain.v1.Nothing/Method{index}")(b"")
        found = await read(metrics)
        counted = {key: value for key, value in found.items() if key[0] == "malletrain_rpc_handled_total"}
        assert counted == {("malletrain_rpc_handled_total", "UNIMPLEMENTED", "unknown", ""): 3}


async def test_without_an_address_nothing_is_counted() -> None:
    host = ServiceHost("127.0.0.1:0", checked())
    servicer = Moody()
    host.add(NAME, profiler_pb2_grpc.add_ProfilerServiceServicer_to_server, servicer)
    port = await host.start()
    async with plain_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
        assert await code_of(profiler_pb2_grpc.ProfilerServiceStub(channel), "a") == "OK"
    await host.stop(0)
    await wait_until_async(lambda: not host.metrics.served)
    assert await read(host.metrics) == {}
