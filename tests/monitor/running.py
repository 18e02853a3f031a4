"""A Monitor that runs, and a reporter that talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.service import MonitorService, create
from malletrain.monitor.settings import MonitorSettings
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock, SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.support.access import CREDENTIAL, checked
from tests.support.channels import stand_in, stand_in_credentials

FAST = MonitorSettings(store_seconds=0.02, publish_seconds=0.02)


class RunningMonitor:
    """A Monitor with a server and a channel to it."""

    def __init__(self, service: MonitorService, port: int, channel: grpc.aio.Channel) -> None:
        self.service = service
        self.address = f"127.0.0.1:{port}"
        self.channel = channel
        self.stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)

    async def progress(self, job_id: str = "j1") -> monitor_pb2.Progress:
        response = await self.stub.GetProgress(monitor_pb2.GetProgressRequest(job_ids=[job_id]), timeout=5)
        return response.progress[0] if response.progress else monitor_pb2.Progress()


@asynccontextmanager
async def running_monitor(
    state_dir: Path,
    section: MonitorSettings = FAST,
    clock: Clock | None = None,
    address: str = "127.0.0.1:0",
    metrics: ServiceMetrics | None = None,
) -> AsyncIterator[RunningMonitor]:
    service = create(Settings(state_dir=state_dir), section, clock or SystemClock())
    host = ServiceHost(address, checked(), credentials=stand_in_credentials(), metrics=metrics)
    service.register(host)
    port = await host.start()
    background = asyncio.create_task(service.run())
    channel = open_channel(stand_in("monitor", f"127.0.0.1:{port}"), CREDENTIAL)
    try:
        yield RunningMonitor(service, port, channel)
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await service.close()
        await host.stop(0.5)
        await channel.close()


def request_of(batch: ReportedBatch) -> monitor_pb2.ReportRequest:
    columns = monitor_pb2.ProgressBatch(
        first_sequence=batch.first_sequence,
        unix_seconds=batch.records.unix_seconds,
        samples=batch.records.samples,
        positions=batch.records.positions,
        workers=batch.records.workers,
    )
    request = monitor_pb2.ReportRequest(
        job_id=batch.job_id,
        reporter_id=batch.reporter_id,
        batch=columns,
        dropped_records=batch.dropped_records,
        slots_per_node=batch.slots_per_node,
    )
    if (feed := batch.feed) is not None:
        request.feed.received_samples, request.feed.prepared_samples = feed.received, feed.prepared
        request.feed.cpu_seconds, request.feed.processes = feed.cpu_seconds, feed.processes
        request.feed.running = feed.running
        request.feed.rates.extend(monitor_pb2.PreparingRate(processes=n, rate=rate) for n, rate in feed.rates.items())
    return request


class Reporter:
    """One Report stream, held open."""

    def __init__(self, stub: monitor_pb2_grpc.MonitorServiceAsyncStub) -> None:
        self.call = stub.Report()

    async def send(self, batch: ReportedBatch) -> None:
        await self.call.write(request_of(batch))

    async def read(self) -> monitor_pb2.ReportResponse | None:
        """The next message; None at the end of the stream."""
        message = await asyncio.wait_for(self.call.read(), 10)
        return message if isinstance(message, monitor_pb2.ReportResponse) else None

    async def acknowledged(self, sequence: int) -> None:
        """Wait until everything up to a sequence is acknowledged."""
        while (message := await self.read()) is not None:
            if message.acknowledged_sequence >= sequence:
                return
        raise AssertionError(f"the stream ended before {sequence} was acknowledged")

    async def command(self) -> monitor_pb2.Command:
        """Wait for a command."""
        while (message := await self.read()) is not None:
            if message.commands:
                return message.commands[0]
        raise AssertionError("the stream ended before a command came")


async def report(stub: monitor_pb2_grpc.MonitorServiceAsyncStub, batches: Iterable[ReportedBatch]) -> list[int]:
    """Send batches, end the stream, and return what was acknowledged."""
    call = stub.Report((request_of(batch) for batch in batches), timeout=10)
    return [response.acknowledged_sequence async for response in call]
