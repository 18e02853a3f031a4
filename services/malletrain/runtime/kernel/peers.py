"""The other services, as one service calls them."""

from __future__ import annotations

from functools import cached_property

import grpc.aio

from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.channel import open_channel
from malletrain.runtime.config import Settings
from malletrain.v1 import job_manager_pb2_grpc, monitor_pb2_grpc, profiler_pb2_grpc, scavenger_pb2_grpc


class Peers:
    """Typed stubs, each on a channel that is opened at its first use. Use from one event loop."""

    def __init__(self, settings: Settings, credential: ServiceCredential) -> None:
        self._settings = settings
        self._credential = credential
        self._channels: dict[str, grpc.aio.Channel] = {}

    @cached_property
    def scavenger(self) -> scavenger_pb2_grpc.ScavengerServiceAsyncStub:
        """The Scavenger."""
        return scavenger_pb2_grpc.ScavengerServiceStub(self._channel("scavenger"))

    @cached_property
    def job_manager(self) -> job_manager_pb2_grpc.JobManagerServiceAsyncStub:
        """JobManager."""
        return job_manager_pb2_grpc.JobManagerServiceStub(self._channel("job_manager"))

    @cached_property
    def monitor(self) -> monitor_pb2_grpc.MonitorServiceAsyncStub:
        """Monitor."""
        return monitor_pb2_grpc.MonitorServiceStub(self._channel("monitor"))

    @cached_property
    def profiler(self) -> profiler_pb2_grpc.ProfilerServiceAsyncStub:
        """The Profiler."""
        return profiler_pb2_grpc.ProfilerServiceStub(self._channel("profiler"))

    async def close(self) -> None:
        """Disconnect."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _channel(self, service: str) -> grpc.aio.Channel:
        if service not in self._channels:
            self._channels[service] = open_channel(self._settings.peer(service), self._credential)
        return self._channels[service]
