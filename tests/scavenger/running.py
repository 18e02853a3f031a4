"""A Scavenger on a real server, and a JobManager that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.server import ServiceHost
from malletrain.scavenger.service import ScavengerService, create
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.v1 import scavenger_pb2, scavenger_pb2_grpc
from tests.support.access import CREDENTIAL, checked
from tests.support.builders import job_message
from tests.support.channels import knowing_stand_ins, stand_in, stand_in_credentials
from tests.support.stand_ins import StandInJobManager, serve

NOBODY = "127.0.0.1:1"


class Watch:
    """What WatchNodes tells, and the idle set that it amounts to."""

    def __init__(self, stub: scavenger_pb2_grpc.ScavengerServiceAsyncStub) -> None:
        self.messages: list[scavenger_pb2.WatchNodesResponse] = []
        self.idle: set[str] = set()
        self.ended = False
        self._task = asyncio.create_task(self._follow(stub))

    async def _follow(self, stub: scavenger_pb2_grpc.ScavengerServiceAsyncStub) -> None:
        try:
            async for message in stub.WatchNodes(scavenger_pb2.WatchNodesRequest()):
                assert message.snapshot == (not self.messages)
                joined = {node.name for node in message.joined}
                assert set(message.left) <= self.idle
                assert not joined & self.idle
                self.idle = (self.idle - set(message.left)) | joined
                self.messages.append(message)
        except grpc.aio.AioRpcError:
            self.ended = True
            raise
        self.ended = True

    @property
    def source_ended(self) -> bool:
        return bool(self.messages) and self.messages[-1].source_ended

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@dataclass
class Running:
    """A Scavenger that serves."""

    service: ScavengerService
    stub: scavenger_pb2_grpc.ScavengerServiceAsyncStub
    address: str
    watches: list[Watch] = field(default_factory=list)

    def watch(self) -> Watch:
        self.watches.append(Watch(self.stub))
        return self.watches[-1]

    async def nodes(self) -> list[str]:
        response = await self.stub.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=5)
        return [node.name for node in response.nodes]

    async def reclaim(
        self, nodes: Iterable[str], hold_seconds: float = 0.0, timeout: float = 5.0
    ) -> scavenger_pb2.ReclaimNodesResponse:
        request = scavenger_pb2.ReclaimNodesRequest(nodes=nodes, hold_seconds=hold_seconds)
        return await self.stub.ReclaimNodes(request, timeout=timeout)


@asynccontextmanager
async def serving(service: ScavengerService, metrics: ServiceMetrics | None = None) -> AsyncIterator[Running]:
    """Serve until the block is left."""
    host = ServiceHost("127.0.0.1:0", checked(), credentials=stand_in_credentials(), metrics=metrics)
    service.register(host)
    port = await host.start()
    background = asyncio.create_task(service.run())
    async with open_channel(stand_in("scavenger", f"127.0.0.1:{port}"), CREDENTIAL) as channel:
        running = Running(service, scavenger_pb2_grpc.ScavengerServiceStub(channel), f"127.0.0.1:{port}")
        yield running
        assert not background.done(), background.result()
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await service.close()
        for watch in running.watches:
            await watch.stop()
    await host.stop(0)


@asynccontextmanager
async def running_scavenger(
    state_dir: Path, section: Mapping[str, object], job_manager: str = NOBODY, metrics: ServiceMetrics | None = None
) -> AsyncIterator[Running]:
    """A Scavenger by its settings."""
    settings = knowing_stand_ins(Settings(state_dir=state_dir, addresses=Addresses(job_manager=job_manager)))
    service = create(settings, ScavengerSettings.model_validate(section), SystemClock(), CREDENTIAL)
    async with serving(service, metrics) as running:
        yield running


@asynccontextmanager
async def releasing(wanted: int = 0) -> AsyncIterator[tuple[StandInJobManager, str]]:
    """A JobManager for releases whose job wants so many nodes, and its address."""
    releases = StandInJobManager(job_message("j1", max_nodes=wanted))
    async with serve(releases) as address:
        yield releases, address
        releases.may_release.set()
