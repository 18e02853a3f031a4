"""One port for calls with and without TLS: without, reports of trainers are taken, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.access.identity import Role
from malletrain.runtime.channel import open_channel
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.support.access import CREDENTIAL, credential_of
from tests.support.channels import plain_channel, stand_in
from tests.support.stand_ins import serve


class Monitor(monitor_pb2_grpc.MonitorServiceServicer):
    """Answers each report, and tells of no progress."""

    async def Report(self, requests: Any, context: Any) -> AsyncIterator[monitor_pb2.ReportResponse]:
        async for _ in requests:
            yield monitor_pb2.ReportResponse()

    async def GetProgress(self, request: Any, context: Any) -> monitor_pb2.GetProgressResponse:
        return monitor_pb2.GetProgressResponse()


async def reports(channel: grpc.aio.Channel) -> int:
    """How many of three reports are answered."""
    stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
    call = stub.Report(iter([monitor_pb2.ReportRequest()] * 3), timeout=10)
    return len([response async for response in call])


async def code_of_progress(channel: grpc.aio.Channel) -> grpc.StatusCode:
    stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
    try:
        await stub.GetProgress(monitor_pb2.GetProgressRequest(), timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_without_tls_reports_are_taken_and_nothing_else() -> None:
    job = credential_of("j1", Role.JOB, "j1")
    async with serve(Monitor(), plain_reports=True) as address:
        async with plain_channel(address, job) as channel:
            assert await reports(channel) == 3
        async with plain_channel(address, CREDENTIAL) as channel:
            assert await code_of_progress(channel) is grpc.StatusCode.UNAUTHENTICATED
        async with open_channel(stand_in("monitor", address), job) as channel:
            assert await reports(channel) == 3
        async with open_channel(stand_in("monitor", address), CREDENTIAL) as channel:
            assert await code_of_progress(channel) is grpc.StatusCode.OK


async def test_unless_an_operator_lets_them_reports_need_tls_too() -> None:
    async with serve(Monitor(), plain_reports=False) as address, plain_channel(address, CREDENTIAL) as channel:
        assert await code_of_progress(channel) is grpc.StatusCode.UNAVAILABLE
