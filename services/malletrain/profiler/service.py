"""Profiler over gRPC: follows JobManager, Monitor and Scavenger, and serves curves and requests for scales."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import structlog
from typing_extensions import override

from malletrain.common.tasks import lasting
from malletrain.profiler import wire
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobProfile
from malletrain.profiler.machine.machine import Effects, ProfilerMachine
from malletrain.profiler.machine.recording import RecordedProfiler
from malletrain.profiler.machine.stimuli import (
    CountRuns,
    Due,
    Effect,
    ProfileRequested,
    PublishProfiles,
    ReadRequested,
    Started,
    Stimulus,
    StoreChanges,
    WarnOfMonitor,
)
from malletrain.profiler.metrics import ProfilerMetrics, ProfilerSnapshot
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.store import METADATA, ProfilerStore, RowChanges
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.access.identity import current_caller, owns, require_owner
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError, NotFoundError, UnavailableError, quote
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub, newest_of_each
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.machine_loop import MachineLoop, MachineStep
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.kernel.write_behind import WriteBehind
from malletrain.runtime.pieces import pieces
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    job_manager_pb2,
    monitor_pb2,
    profiler_pb2,
    profiler_pb2_grpc,
    scavenger_pb2,
)

_MIN_RECORDED = 40
"""Stimuli that are recorded; reports of a thousand jobs are long."""

SERVICE_NAME = "malletrain.v1.ProfilerService"


def create(
    settings: Settings, section: ProfilerSettings, clock: Clock, credential: ServiceCredential
) -> ProfilerService:
    """Profiler on its own database, with its peers at the configured addresses.

    Raises:
        DatabaseUnavailableError: the database can't be opened.
    """
    store = ProfilerStore(open_database(settings.database("profiler"), METADATA))
    return ProfilerService(settings, section, store, clock, credential)


class ProfilerService(profiler_pb2_grpc.ProfilerServiceServicer):
    """Learns curves from ordinary running, and profiles jobs where that is wanted."""

    def __init__(
        self,
        settings: Settings,
        section: ProfilerSettings,
        store: ProfilerStore,
        clock: Clock,
        credential: ServiceCredential,
    ) -> None:
        self._peers = Peers(settings, credential)
        self._store = store
        options = section.options()
        families = store.load_families(options.family_members)
        curves = CurveEstimator(options, families, store.load_histories())
        self._machine = ProfilerMachine(options, curves, store.load_state())
        recorder = FlightRecorder(
            Path(settings.state_dir) / "debug", RecordedProfiler(), settings.validate_state, min_stimuli=_MIN_RECORDED
        )
        self._hub: Hub[list[profiler_pb2.Profile]] = Hub(merge=newest_of_each(lambda entry: entry.job_id))
        self._loop = MachineLoop[ProfilerMachine, Stimulus, Effects](self._machine, recorder, clock, self._perform_all)
        self._metrics = ProfilerMetrics()
        self._changes = WriteBehind[RowChanges](
            store.write, RowChanges.followed_by, "profiler", on_failed=self._metrics.store_failures.inc
        )
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, profiler_pb2_grpc.add_ProfilerServiceServicer_to_server, self)
        self._metrics.register(
            host.metrics, lambda: ProfilerSnapshot.of(self._machine.curves.profiles(), self._machine.runs)
        )

    async def run(self) -> None:
        """Follow the peers, until cancelled.

        Raises:
            InvariantError: the state contradicts itself; only with `validate_state`.
        """
        peers = self._peers
        jobs = job_manager_pb2.WatchJobsRequest(without_progress=True, in_pieces=True)
        nodes, scaling = scavenger_pb2.WatchNodesRequest(in_pieces=True), monitor_pb2.WatchScalingRequest()
        self._loop.apply(Started())
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting(follow("jobs", lambda: peers.job_manager.WatchJobs(jobs), self._on_jobs), "jobs"))
            group.create_task(
                lasting(follow("scaling", lambda: peers.monitor.WatchScaling(scaling), self._on_scaling), "scaling")
            )
            group.create_task(
                lasting(follow("nodes", lambda: peers.scavenger.WatchNodes(nodes), self._on_nodes), "nodes")
            )
            group.create_task(lasting(self._changes.run(), "changes to store"))
            following = self._loop.follow_time(Due(), lambda machine: machine.due_at)
            group.create_task(lasting(following, "tell when due"))

    async def close(self) -> None:
        """End all streams and close the database."""
        self._hub.close()
        self._perform(StoreChanges(with_points=True))
        await self._changes.flush()
        self._store.close()
        await self._peers.close()

    @override
    async def GetProfile(
        self, request: profiler_pb2.GetProfileRequest, context: Any
    ) -> profiler_pb2.GetProfileResponse:
        """The profile of one job."""
        del context
        return profiler_pb2.GetProfileResponse(profile=self._visible_profile(self._read_profile(request.job_id)))

    @override
    async def StartProfile(
        self, request: profiler_pb2.StartProfileRequest, context: Any
    ) -> profiler_pb2.StartProfileResponse:
        """Queue a run. Asking again while one is queued or active changes nothing."""
        del context
        self._read_profile(request.job_id)
        job = self._machine.jobs[request.job_id]
        require_owner(current_caller(), job.owner, job.job_id, "have it profiled")
        self._loop.apply(ProfileRequested(request.job_id))
        await (
            self._changes.wait_until_stored()
        )  # where that fails, the run is queued nevertheless; asking again changes nothing
        return profiler_pb2.StartProfileResponse(profile=self._read_profile(request.job_id))

    @override
    async def WatchProfiles(
        self, request: profiler_pb2.WatchProfilesRequest, context: Any
    ) -> AsyncIterator[profiler_pb2.WatchProfilesResponse]:
        """All profiles as soon as the peers' snapshots are in, even if there are none; then each change."""
        del request, context
        with self._hub.subscribe() as changes:
            if self._machine.ready:
                present = self._messages(self._machine.curves.profiles())
                for profiles, _ in pieces(map(self._visible_profile, present)):
                    yield profiler_pb2.WatchProfilesResponse(profiles=profiles)
            async for changed in changes:
                for profiles, _ in pieces(map(self._visible_profile, changed)):
                    yield profiler_pb2.WatchProfilesResponse(profiles=profiles)

    def _visible_profile(self, profile: profiler_pb2.Profile) -> profiler_pb2.Profile:
        """A profile as the caller may see it: the family of a job is its owner's matter."""
        job = self._machine.jobs.get(profile.job_id)
        if not profile.family or owns(current_caller(), job.owner if job else ""):
            return profile
        visible = profiler_pb2.Profile()
        visible.CopyFrom(profile)
        visible.ClearField("family")
        return visible

    def _read_profile(self, job_id: str) -> profiler_pb2.Profile:
        if not job_id:
            raise InvalidInputError("job_id", "a job identifier", job_id)
        self._loop.apply(ReadRequested())
        if not self._machine.ready:
            raise UnavailableError("no profiles yet: JobManager has not been reached since the start")
        profile = self._machine.curves.last_profile(job_id)
        if profile is None:
            raise NotFoundError(f"job {quote(job_id)} is not known, or ended long ago or before the Profiler started")
        return wire.profile_message(profile, self._machine.runs)

    def _messages(self, profiles: Sequence[JobProfile]) -> list[profiler_pb2.Profile]:
        return [wire.profile_message(profile, self._machine.runs) for profile in profiles]

    async def _on_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        self._loop.apply(wire.jobs_from_proto(message))

    async def _on_scaling(self, message: monitor_pb2.WatchScalingResponse) -> None:
        self._loop.apply(wire.scaling_from_proto(message, self._machine.curves))

    async def _on_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        self._loop.apply(wire.nodes_from_proto(message))

    def _perform_all(self, step: MachineStep[ProfilerMachine, Stimulus, Effects]) -> None:
        for effect in step.result:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case PublishProfiles():
                self._hub.publish(self._messages(effect.profiles))
                self._metrics.note_published(len(effect.profiles))
                self._log.debug("profiles changed", jobs=[profile.job_id for profile in effect.profiles])
            case CountRuns():
                self._metrics.note_step(effect.before, effect.after)
            case StoreChanges():
                curves = self._machine.curves
                families = curves.families if effect.with_points else None
                if changes := self._store.changes(self._machine.runs, families, curves.histories):
                    self._changes.add(changes)
            case WarnOfMonitor():
                self._log.warning("Monitor not reached, going on without its records")
