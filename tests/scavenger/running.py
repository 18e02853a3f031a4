"""A Scavenger on a real server, and a JobManager that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.server import ServiceHost
from malletrain.scavenger.service import ScavengerService, create
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.v1 import job_manager_pb2, resources_pb2, scavenger_pb2, scavenger_pb2_grpc
from tests.support.access import CREDENTIAL, checked

JOB_MANAGER = "malletrain.v1.JobManagerService"
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
    host = ServiceHost("127.0.0.1:0", checked(), metrics=metrics)
    service.register(host)
    port = await host.start()
    background = asyncio.create_task(service.run())
    async with open_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
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
    settings = Settings(state_dir=state_dir, addresses=Addresses(job_manager=job_manager))
    service = create(settings, ScavengerSettings.model_validate(section), SystemClock(), CREDENTIAL)
    async with serving(service, metrics) as running:
        yield running


class Releases:
    """A JobManager that confirms releases when it may, but for the nodes that it keeps; its one job wants nodes."""

    def __init__(self, wanted: int = 0) -> None:
        self.wanted = wanted
        self.watched: list[job_manager_pb2.WatchJobsRequest] = []
        self.asked: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.keeps: set[str] = set()

    async def watch_jobs(
        self, request: job_manager_pb2.WatchJobsRequest, _context: Any
    ) -> AsyncIterator[job_manager_pb2.WatchJobsResponse]:
        self.watched.append(request)
        job = resources_pb2.Job(id="j1", spec=resources_pb2.JobSpec(max_nodes=self.wanted))
        yield job_manager_pb2.WatchJobsResponse(snapshot=True, jobs=[job])
        await asyncio.Event().wait()

    async def release_nodes(
        self, request: job_manager_pb2.ReleaseNodesRequest, _context: Any
    ) -> job_manager_pb2.ReleaseNodesResponse:
        self.asked.append(list(request.nodes))
        await self.may_answer.wait()
        return job_manager_pb2.ReleaseNodesResponse(released=[name for name in request.nodes if name not in self.keeps])


def _register(releases: Releases, server: grpc.aio.Server) -> None:
    handlers = {
        "ReleaseNodes": grpc.unary_unary_rpc_method_handler(
            releases.release_nodes,
            request_deserializer=job_manager_pb2.ReleaseNodesRequest.FromString,
            response_serializer=job_manager_pb2.ReleaseNodesResponse.SerializeToString,
        ),
        "WatchJobs": grpc.unary_stream_rpc_method_handler(
            releases.watch_jobs,
            request_deserializer=job_manager_pb2.WatchJobsRequest.FromString,
            response_serializer=job_manager_pb2.WatchJobsResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(JOB_MANAGER, handlers),))


@asynccontextmanager
async def releasing(wanted: int = 0) -> AsyncIterator[tuple[Releases, str]]:
    """A JobManager for releases whose job wants so many nodes, and its address."""
    releases = Releases(wanted)
    host = ServiceHost("127.0.0.1:0", checked())
    host.add(JOB_MANAGER, _register, releases)
    port = await host.start()
    yield releases, f"127.0.0.1:{port}"
    releases.may_answer.set()
    await host.stop(0)
