"""A running Profiler, and a stand-in for JobManager that serves jobs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from malletrain.profiler.service import ProfilerService, create
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.hub import Hub
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    job_manager_pb2,
    profiler_pb2,
    profiler_pb2_grpc,
    resources_pb2,
)
from tests.support.access import CREDENTIAL, checked

JOB_MANAGER = "malletrain.v1.JobManagerService"
NOWHERE = "127.0.0.1:9"


class JobsPeer:
    """Serves WatchJobs as JobManager does: all jobs first, then each change."""

    def __init__(self) -> None:
        self.jobs: dict[str, resources_pb2.Job] = {}
        self._hub: Hub[resources_pb2.Job] = Hub()

    def put(self, job: resources_pb2.Job) -> None:
        self.jobs[job.id] = job
        self._hub.publish(job)

    async def watch_jobs(
        self, _request: job_manager_pb2.WatchJobsRequest, _context: Any
    ) -> AsyncIterator[job_manager_pb2.WatchJobsResponse]:
        with self._hub.subscribe() as changes:
            yield job_manager_pb2.WatchJobsResponse(snapshot=True, jobs=self.jobs.values())
            async for job in changes:
                yield job_manager_pb2.WatchJobsResponse(jobs=[job])


def _register(peer: JobsPeer, server: grpc.aio.Server) -> None:
    handler = grpc.unary_stream_rpc_method_handler(
        peer.watch_jobs,
        request_deserializer=job_manager_pb2.WatchJobsRequest.FromString,
        response_serializer=job_manager_pb2.WatchJobsResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(JOB_MANAGER, {"WatchJobs": handler}),))


@asynccontextmanager
async def jobs_peer(peer: JobsPeer, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    host = ServiceHost(address, checked())
    host.add(JOB_MANAGER, _register, peer)
    port = await host.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await host.stop(0)


class RunningProfiler:
    """A Profiler in this process with its server, and a client stub."""

    def __init__(
        self, service: ProfilerService, stub: profiler_pb2_grpc.ProfilerServiceAsyncStub, address: str
    ) -> None:
        self.service = service
        self.stub = stub
        self.address = address

    def watch(self) -> ProfileWatch:
        return ProfileWatch(self.stub)

    async def profile(self, job_id: str) -> profiler_pb2.Profile:
        response = await self.stub.GetProfile(profiler_pb2.GetProfileRequest(job_id=job_id), timeout=5)
        return response.profile


class ProfileWatch:
    """A WatchProfiles stream; usable as a context manager that ends it."""

    def __init__(self, stub: profiler_pb2_grpc.ProfilerServiceAsyncStub) -> None:
        self._call = stub.WatchProfiles(profiler_pb2.WatchProfilesRequest(), timeout=60)
        self._messages = aiter(self._call)

    def __enter__(self) -> ProfileWatch:
        return self

    def __exit__(self, *_error: object) -> None:
        self._call.cancel()

    async def next(self) -> dict[str, profiler_pb2.Profile]:
        message = await asyncio.wait_for(anext(self._messages), 20)
        return {profile.job_id: profile for profile in message.profiles}

    async def next_of(self, job_id: str) -> profiler_pb2.Profile:
        while job_id not in (profiles := await self.next()):
            pass
        return profiles[job_id]


@asynccontextmanager
async def running_profiler(
    job_manager: str,
    monitor: str,
    section: ProfilerSettings | None = None,
    scavenger: str = NOWHERE,
    state_dir: Path | None = None,
    metrics: ServiceMetrics | None = None,
) -> AsyncIterator[RunningProfiler]:
    folder = tempfile.TemporaryDirectory() if state_dir is None else None
    settings = Settings(
        state_dir=state_dir or Path(folder.name if folder else ""),
        addresses=Addresses(job_manager=job_manager, monitor=monitor, scavenger=scavenger),
    )
    service = create(settings, section or ProfilerSettings(snapshot_seconds=60), SystemClock(), CREDENTIAL)
    host = ServiceHost("127.0.0.1:0", checked(), metrics=metrics)
    service.register(host)
    port = await host.start()
    background = asyncio.create_task(service.run())
    try:
        async with open_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
            yield RunningProfiler(service, profiler_pb2_grpc.ProfilerServiceStub(channel), f"127.0.0.1:{port}")
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await service.close()
        await host.stop(0)
        if folder is not None:
            folder.cleanup()


def job(job_id: str, max_nodes: int = 4, **spec: Any) -> resources_pb2.Job:
    state, owner = spec.pop("state", resources_pb2.JOB_STATE_RUNNING), spec.pop("owner", "")
    return resources_pb2.Job(
        id=job_id, owner=owner, state=state, spec=resources_pb2.JobSpec(min_nodes=1, max_nodes=max_nodes, **spec)
    )
