"""A running Profiler."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from malletrain.profiler.service import ProfilerService, create
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    profiler_pb2,
    profiler_pb2_grpc,
)
from tests.support.access import CREDENTIAL, checked
from tests.support.channels import knowing_stand_ins, plain_channel

NOWHERE = "127.0.0.1:9"


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
    settings = knowing_stand_ins(
        Settings(
            state_dir=state_dir or Path(folder.name if folder else ""),
            addresses=Addresses(job_manager=job_manager, monitor=monitor, scavenger=scavenger),
        )
    )
    service = create(settings, section or ProfilerSettings(snapshot_seconds=60), SystemClock(), CREDENTIAL)
    host = ServiceHost("127.0.0.1:0", checked(), metrics=metrics)
    service.register(host)
    port = await host.start()
    background = asyncio.create_task(service.run())
    try:
        async with plain_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
            yield RunningProfiler(service, profiler_pb2_grpc.ProfilerServiceStub(channel), f"127.0.0.1:{port}")
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await service.close()
        await host.stop(0)
        if folder is not None:
            folder.cleanup()
