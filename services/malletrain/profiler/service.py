"""Profiler over gRPC: follows JobManager and Monitor, serves profiles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import structlog
from typing_extensions import override

from malletrain.profiler.book import JobProfile, ProfileBook
from malletrain.profiler.messages import FINAL_STATES, facts_of, measurements_of, profile_message
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError, NotFoundError, UnavailableError
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
)

SERVICE_NAME = "malletrain.v1.ProfilerService"


def create(settings: Settings, section: ProfilerSettings, clock: Clock) -> ProfilerService:
    """Profiler with its peers at the configured addresses. It keeps nothing on disk and reads no clock."""
    del clock
    return ProfilerService(settings.addresses.job_manager, settings.addresses.monitor, section)


class ProfilerService(profiler_pb2_grpc.ProfilerServiceServicer):
    """Learns from ordinary running: what users declare and what Monitor measures."""

    def __init__(self, job_manager_address: str, monitor_address: str, section: ProfilerSettings) -> None:
        """Know nothing yet: `run` learns it from the peers."""
        self._job_manager_address = job_manager_address
        self._monitor_address = monitor_address
        self._section = section
        self._book = ProfileBook(section)
        self._hub: Hub[list[JobProfile]] = Hub()
        self._jobs_known = False
        self._scaling_known = False
        self._ready = False
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, profiler_pb2_grpc.add_ProfilerServiceServicer_to_server, self)

    async def run(self) -> None:
        """Follow the peers, until cancelled."""
        async with (
            open_channel(self._job_manager_address) as job_manager_channel,
            open_channel(self._monitor_address) as monitor_channel,
            asyncio.TaskGroup() as group,
        ):
            jobs: job_manager_pb2_grpc.JobManagerServiceAsyncStub = job_manager_pb2_grpc.JobManagerServiceStub(
                job_manager_channel
            )
            monitor: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(monitor_channel)
            group.create_task(
                follow("jobs", lambda: jobs.WatchJobs(job_manager_pb2.WatchJobsRequest()), self._take_jobs)
            )
            group.create_task(
                follow("scaling", lambda: monitor.WatchScaling(monitor_pb2.WatchScalingRequest()), self._take_scaling)
            )
            group.create_task(self._stop_waiting())

    async def close(self) -> None:
        """End all streams."""
        self._hub.close()

    @override
    async def GetProfile(
        self, request: profiler_pb2.GetProfileRequest, context: Any
    ) -> profiler_pb2.GetProfileResponse:
        """The profile of one job."""
        del context
        if not request.job_id:
            raise InvalidInputError("job_id", "a job identifier", request.job_id)
        if not self._ready:
            raise UnavailableError("no profiles yet: JobManager has not been reached since the start")
        profile = self._book.profile(request.job_id)
        if profile is None:
            raise NotFoundError(f"job {request.job_id!r} is not known, or has ended")
        return profiler_pb2.GetProfileResponse(profile=profile_message(profile))

    @override
    async def WatchProfiles(
        self, request: profiler_pb2.WatchProfilesRequest, context: Any
    ) -> AsyncIterator[profiler_pb2.WatchProfilesResponse]:
        """All profiles first (as soon as the peers' snapshots are in; none is a message, too), then each change."""
        del request, context
        with self._hub.subscribe() as changes:
            if self._ready:
                yield _response(self._book.profiles())
            async for profiles in changes:
                yield _response(profiles)

    async def _take_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        if message.snapshot:
            self._book.keep_only(job.id for job in message.jobs)
            self._jobs_known = True
        for job in message.jobs:
            if job.state in FINAL_STATES:
                self._book.remove_job(job.id)
            else:
                self._book.put_job(facts_of(job))
        self._publish()

    async def _take_scaling(self, message: monitor_pb2.WatchScalingResponse) -> None:
        self._scaling_known = True
        for record in message.records:
            self._book.put_measurements(record.job_id, measurements_of(record))
        self._publish()

    async def _stop_waiting(self) -> None:
        """Without Monitor's records a measured job would look unknown, and be rescaled twice for nothing."""
        await asyncio.sleep(self._section.snapshot_seconds)
        if not self._scaling_known:
            self._log.warning("Monitor not reached, going on without its records")
            self._scaling_known = True
            self._publish()

    def _publish(self) -> None:
        if not (self._jobs_known and self._scaling_known):
            return
        changed = self._book.refresh()
        if changed or not self._ready:
            self._ready = True
            self._hub.publish(changed)
            self._log.debug("profiles changed", jobs=[profile.job_id for profile in changed])


def _response(profiles: list[JobProfile]) -> profiler_pb2.WatchProfilesResponse:
    return profiler_pb2.WatchProfilesResponse(profiles=[profile_message(profile) for profile in profiles])
