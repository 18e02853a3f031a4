"""Profiler over gRPC: follows JobManager, Monitor and Scavenger, serves profiles, and asks for what runs need."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import structlog
from sqlalchemy.exc import OperationalError
from typing_extensions import override

from malletrain.profiler.book import ProfileBook
from malletrain.profiler.messages import FINAL_STATES, facts_of, measurements_of, profile_message, view_of
from malletrain.profiler.office import Brief, Office
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.store import ProfilerStore
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.errors import InvalidInputError, NotFoundError, UnavailableError
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.store import open_engine
from malletrain.v1 import (
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
    resources_pb2,
    scavenger_pb2,
    scavenger_pb2_grpc,
)

SERVICE_NAME = "malletrain.v1.ProfilerService"


def create(settings: Settings, section: ProfilerSettings, clock: Clock) -> ProfilerService:
    """Profiler on its own database, with its peers at the configured addresses.

    Raises:
        sqlalchemy.exc.OperationalError: the database can't be opened.
    """
    return ProfilerService(
        settings.addresses, section, ProfilerStore(open_engine(settings.database("profiler"))), clock
    )


class ProfilerService(profiler_pb2_grpc.ProfilerServiceServicer):
    """Learns from ordinary running, and measures curves on purpose where that is wanted."""

    def __init__(self, addresses: Addresses, section: ProfilerSettings, store: ProfilerStore, clock: Clock) -> None:
        """Go on from what the store holds; `run` learns the rest from the peers."""
        self._addresses = addresses
        self._section = section
        self._store = store
        self._clock = clock
        book = ProfileBook(section, store.load_kinship(section.family_members))
        self._office = Office(section, book, store.load_desk())
        self._jobs: dict[str, resources_pb2.Job] = {}
        self._nodes: dict[str, str] | None = None
        self._hub: Hub[list[profiler_pb2.Profile]] = Hub()
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
            open_channel(self._addresses.job_manager) as job_manager_channel,
            open_channel(self._addresses.monitor) as monitor_channel,
            open_channel(self._addresses.scavenger) as scavenger_channel,
            asyncio.TaskGroup() as group,
        ):
            jobs: job_manager_pb2_grpc.JobManagerServiceAsyncStub = job_manager_pb2_grpc.JobManagerServiceStub(
                job_manager_channel
            )
            monitor: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(monitor_channel)
            scavenger: scavenger_pb2_grpc.ScavengerServiceAsyncStub = scavenger_pb2_grpc.ScavengerServiceStub(
                scavenger_channel
            )
            group.create_task(
                follow("jobs", lambda: jobs.WatchJobs(job_manager_pb2.WatchJobsRequest()), self._take_jobs)
            )
            group.create_task(
                follow("scaling", lambda: monitor.WatchScaling(monitor_pb2.WatchScalingRequest()), self._take_scaling)
            )
            group.create_task(
                follow("nodes", lambda: scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest()), self._take_nodes)
            )
            group.create_task(self._stop_waiting())
            group.create_task(self._look_again())

    async def close(self) -> None:
        """End all streams and let go of the database."""
        self._hub.close()
        self._store.close()

    @override
    async def GetProfile(
        self, request: profiler_pb2.GetProfileRequest, context: Any
    ) -> profiler_pb2.GetProfileResponse:
        """The profile of one job."""
        del context
        if not request.job_id:
            raise InvalidInputError("job_id", "a job identifier", request.job_id)
        return profiler_pb2.GetProfileResponse(profile=self._message(request.job_id))

    @override
    async def StartProfile(
        self, request: profiler_pb2.StartProfileRequest, context: Any
    ) -> profiler_pb2.StartProfileResponse:
        """Queue a run; asking again while it is queued or active changes nothing."""
        del context
        if not request.job_id:
            raise InvalidInputError("job_id", "a job identifier", request.job_id)
        self._message(request.job_id)
        spec = self._jobs[request.job_id].spec
        if len(spec.permitted_nodes) == 1 or spec.min_nodes == spec.max_nodes:
            raise InvalidInputError("job_id", "a job that may run at more than one scale", request.job_id)
        self._office.ask(request.job_id)
        self._publish()
        self._store.save(self._office.desk, self._office.book.kinship)
        return profiler_pb2.StartProfileResponse(profile=self._message(request.job_id))

    @override
    async def WatchProfiles(
        self, request: profiler_pb2.WatchProfilesRequest, context: Any
    ) -> AsyncIterator[profiler_pb2.WatchProfilesResponse]:
        """All profiles first (as soon as the peers' snapshots are in; none is a message, too), then each change."""
        del request, context
        with self._hub.subscribe() as changes:
            if self._ready:
                yield _response([_message_of(brief) for brief in self._office.briefs()])
            async for profiles in changes:
                yield _response(profiles)

    def _message(self, job_id: str) -> profiler_pb2.Profile:
        if not self._ready:
            raise UnavailableError("no profiles yet: JobManager has not been reached since the start")
        brief = self._office.brief(job_id)
        if brief is None:
            raise NotFoundError(f"job {job_id!r} is not known, or has ended")
        return _message_of(brief)

    async def _take_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        if message.snapshot:
            self._office.book.keep_only(job.id for job in message.jobs)
            self._jobs = {}
            self._jobs_known = True
        for job in message.jobs:
            if job.state in FINAL_STATES:
                self._jobs.pop(job.id, None)
                self._office.book.remove_job(job.id)
            else:
                self._jobs[job.id] = job
                self._office.put_job(facts_of(job))
        self._publish()

    async def _take_scaling(self, message: monitor_pb2.WatchScalingResponse) -> None:
        self._scaling_known = True
        for record in message.records:
            self._office.put_measurements(record.job_id, measurements_of(record))
        self._publish()

    async def _take_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        nodes = {} if message.snapshot or self._nodes is None else self._nodes
        kept = {name: pool for name, pool in nodes.items() if name not in message.left}
        self._nodes = kept | {node.name: node.pool for node in message.joined}
        self._publish()

    async def _stop_waiting(self) -> None:
        """Without Monitor's records a measured job would look unknown, and be rescaled twice for nothing."""
        await asyncio.sleep(self._section.snapshot_seconds)
        if not self._scaling_known:
            self._log.warning("Monitor not reached, going on without its records")
            self._scaling_known = True
            self._publish()

    async def _look_again(self) -> None:
        """Time passes for runs as well as events."""
        while True:
            await asyncio.sleep(self._section.look_seconds)
            self._publish()

    def _publish(self) -> None:
        if not (self._jobs_known and self._scaling_known):
            return
        now = self._clock.time()
        views = [view_of(job, now, self._nodes or {}) for _, job in sorted(self._jobs.items()) if job.admitted]
        idle = None if self._nodes is None else Counter(self._nodes.values())
        changed = self._office.look(now, idle, views)
        try:
            self._store.save(self._office.desk, self._office.book.kinship)
        except OperationalError as error:
            self._log.error("runs could not be stored, trying again", error=str(error))
        if changed or not self._ready:
            self._ready = True
            self._hub.publish([self._message(job_id) for job_id in changed])
            self._log.debug("profiles changed", jobs=changed)


def _message_of(brief: Brief) -> profiler_pb2.Profile:
    return profile_message(brief.profile, brief.order, brief.until, brief.run, brief.profiled)


def _response(profiles: list[profiler_pb2.Profile]) -> profiler_pb2.WatchProfilesResponse:
    return profiler_pb2.WatchProfilesResponse(profiles=profiles)
