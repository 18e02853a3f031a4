"""Profiler over gRPC: follows JobManager, Monitor and Scavenger, and serves curves and requests for scales."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Any

import structlog
from typing_extensions import override

from malletrain.profiler.curve_estimator import CurveEstimator, JobProfile
from malletrain.profiler.job_views import JobViews, without_fleets
from malletrain.profiler.messages import declaration_of, measurements_of, profile_message
from malletrain.profiler.metrics import ProfilerMetrics, ProfilerSnapshot
from malletrain.profiler.profile_scheduler import ClusterView, advance, changed_jobs
from malletrain.profiler.profiling_policy import CurveBasedPolicy
from malletrain.profiler.runs import ProfileRunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.store import ProfilerStore
from malletrain.profiler.validation import validate_curves, validate_runs
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.access.identity import current_caller
from malletrain.runtime.access.ownership import owns, require_owner
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError, NotFoundError, UnavailableError, quoted
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub, newest_of_each
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.runtime.server import ServiceHost
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

_LONGEST_REST_SECONDS = 2.0
_PATIENCE_SECONDS = 0.1
"""How long news of jobs that are known wait: a leave calls for a release first, and for a plan 50 ms later."""

SERVICE_NAME = "malletrain.v1.ProfilerService"


def create(settings: Settings, section: ProfilerSettings, clock: Clock, credential: Credential) -> ProfilerService:
    """Profiler on its own database, with its peers at the configured addresses.

    Raises:
        DatabaseUnavailableError: the database can't be opened.
    """
    store = ProfilerStore(open_database(settings.database("profiler")))
    return ProfilerService(settings, section, store, clock, credential, settings.validate_state)


class ProfilerService(profiler_pb2_grpc.ProfilerServiceServicer):
    """Learns curves from ordinary running, and profiles jobs where that is wanted."""

    def __init__(
        self,
        settings: Settings,
        section: ProfilerSettings,
        store: ProfilerStore,
        clock: Clock,
        credential: Credential,
        validate_state: bool = False,
    ) -> None:
        """Continue with what is stored; `run` learns the rest from the peers.

        Args:
            settings: Where the peers are.
            section: Settings of Profiler.
            store: Its database.
            clock: Source of time.
            credential: What is shown to the peers.
            validate_state: Whether to check the invariants of the state after each change.
        """
        self._settings = settings
        self._section = section
        self._store = store
        self._clock = clock
        self._credential = credential
        self._validate_state = validate_state
        self._curves = CurveEstimator(section, store.load_families(section.family_members), store.load_histories())
        self._state = store.load_state()
        self._jobs: dict[str, resources_pb2.Job] = {}
        self._nodes: dict[str, str] | None = None
        self._hub: Hub[list[profiler_pb2.Profile]] = Hub(merge=newest_of_each(lambda entry: entry.job_id))
        self._jobs_known = False
        self._scaling_known = False
        self._ready = False
        self._views = JobViews()
        self._news = asyncio.Event()
        self._new_jobs = False
        self._points_saved_at = -inf
        self._published_at = -inf
        self._unsaved = False
        self._metrics = ProfilerMetrics()
        self._log = structlog.get_logger(__name__)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, profiler_pb2_grpc.add_ProfilerServiceServicer_to_server, self)
        self._metrics.register(host.metrics, lambda: ProfilerSnapshot.of(self._curves.profiles(), self._state))

    async def run(self) -> None:
        """Follow the peers, until cancelled.

        Raises:
            InvariantError: the state contradicts itself; only with `validate_state`.
        """
        async with (
            open_channel(self._settings.peer("job_manager"), self._credential) as job_manager_channel,
            open_channel(self._settings.peer("monitor"), self._credential) as monitor_channel,
            open_channel(self._settings.peer("scavenger"), self._credential) as scavenger_channel,
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
                follow(
                    "jobs",
                    lambda: jobs.WatchJobs(job_manager_pb2.WatchJobsRequest(without_progress=True)),
                    self._take_jobs,
                )
            )
            group.create_task(
                follow("scaling", lambda: monitor.WatchScaling(monitor_pb2.WatchScalingRequest()), self._take_scaling)
            )
            group.create_task(
                follow("nodes", lambda: scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest()), self._take_nodes)
            )
            group.create_task(self._publish_changes())
            group.create_task(self._stop_waiting_for_monitor())
            group.create_task(self._look_regularly())

    async def close(self) -> None:
        """End all streams and close the database."""
        self._hub.close()
        with contextlib.suppress(DatabaseUnavailableError):
            self._save_points()
        self._store.close()

    @override
    async def GetProfile(
        self, request: profiler_pb2.GetProfileRequest, context: Any
    ) -> profiler_pb2.GetProfileResponse:
        """The profile of one job."""
        del context
        return profiler_pb2.GetProfileResponse(profile=self._shown(self._message(request.job_id)))

    @override
    async def StartProfile(
        self, request: profiler_pb2.StartProfileRequest, context: Any
    ) -> profiler_pb2.StartProfileResponse:
        """Queue a run. Asking again while one is queued or active changes nothing."""
        del context
        self._message(request.job_id)
        job = self._jobs[request.job_id]
        require_owner(current_caller(), job.owner, job.id, "have it profiled")
        spec = job.spec
        if job.fleet_id:
            raise InvalidInputError("job_id", "a job that is in no fleet: members are measured by its plan", job.id)
        if len(spec.permitted_nodes) == 1 or spec.min_nodes == spec.max_nodes:
            raise InvalidInputError("job_id", "a job that may run at more than one scale", request.job_id)
        self._state = self._state.with_requested_run(request.job_id)
        self._publish()
        self._save()  # where that fails, the run is queued nevertheless, and asking again changes nothing
        return profiler_pb2.StartProfileResponse(profile=self._message(request.job_id))

    @override
    async def WatchProfiles(
        self, request: profiler_pb2.WatchProfilesRequest, context: Any
    ) -> AsyncIterator[profiler_pb2.WatchProfilesResponse]:
        """All profiles as soon as the peers' snapshots are in, even if there are none; then each change."""
        del request, context
        with self._hub.subscribe() as changes:
            if self._ready:
                present = self._messages(self._curves.profiles())
                yield profiler_pb2.WatchProfilesResponse(profiles=map(self._shown, present))
            async for profiles in changes:
                yield profiler_pb2.WatchProfilesResponse(profiles=map(self._shown, profiles))

    def _shown(self, profile: profiler_pb2.Profile) -> profiler_pb2.Profile:
        """A profile as the caller may see it: the family of a job is its owner's matter."""
        job = self._jobs.get(profile.job_id)
        if not profile.family or owns(current_caller(), job.owner if job else ""):
            return profile
        shown = profiler_pb2.Profile()
        shown.CopyFrom(profile)
        shown.ClearField("family")
        return shown

    def _message(self, job_id: str) -> profiler_pb2.Profile:
        if not job_id:
            raise InvalidInputError("job_id", "a job identifier", job_id)
        if not self._ready:
            raise UnavailableError("no profiles yet: JobManager has not been reached since the start")
        if self._news.is_set():
            self._news.clear()
            self._publish()
        profile = self._curves.profile(job_id)
        if profile is None:
            raise NotFoundError(f"job {quoted(job_id)} is not known, or has ended")
        return profile_message(profile, self._state)

    def _messages(self, profiles: Sequence[JobProfile]) -> list[profiler_pb2.Profile]:
        return [profile_message(profile, self._state) for profile in profiles]

    async def _take_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        if message.snapshot:
            self._curves.keep_only(job.id for job in message.jobs)
            self._jobs = {}
            self._jobs_known = True
        for job in message.jobs:
            if job.state in FINAL_JOB_STATES:
                self._jobs.pop(job.id, None)
                self._curves.remove_job(job.id)
                self._points_saved_at = -inf  # nobody else will say again what its family has learned of it
            else:
                self._new_jobs |= job.id not in self._jobs
                self._jobs[job.id] = job
                self._curves.put_job(declaration_of(job))
        self._news.set()

    async def _take_scaling(self, message: monitor_pb2.WatchScalingResponse) -> None:
        self._scaling_known = True
        for record in message.records:
            self._curves.put_measurements(record.job_id, measurements_of(record))
        self._news.set()

    async def _take_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        nodes = {} if message.snapshot or self._nodes is None else self._nodes
        left = frozenset(message.left)
        kept = {name: pool for name, pool in nodes.items() if name not in left}
        self._nodes = kept | {node.name: node.pool for node in message.joined}
        self._news.set()

    async def _stop_waiting_for_monitor(self) -> None:
        """Serve without Monitor's records after a while. Measured jobs then get priors, and may be rescaled for it."""
        await asyncio.sleep(self._section.snapshot_seconds)
        if not self._scaling_known:
            self._log.warning("Monitor not reached, going on without its records")
            self._scaling_known = True
            self._news.set()

    async def _look_regularly(self) -> None:
        """Let runs and curves go on when no message arrives: some steps are due after a time."""
        while True:
            await asyncio.sleep(self._section.look_seconds)
            rested = self._clock.monotonic() - self._published_at >= _LONGEST_REST_SECONDS
            runs_go_on = any(run.state is not ProfileRunState.DONE for run in self._state.runs.values())
            if self._unsaved or rested or runs_go_on:
                self._news.set()

    async def _publish_changes(self) -> None:
        """Publish soon what comes after a pause, a new job at once, and all that comes soon after it together."""
        while True:
            await self._news.wait()
            if not self._new_jobs:
                # Where nodes or jobs have changed, others have more urgent things to do just now.
                await asyncio.sleep(min(_PATIENCE_SECONDS, self._section.publish_seconds))
            self._new_jobs = False
            self._news.clear()
            self._publish()
            await asyncio.sleep(self._section.publish_seconds)

    def _publish(self) -> None:
        """Recompute curves and runs, store them, and tell watchers what has changed."""
        if not (self._jobs_known and self._scaling_known):
            return
        now, self._published_at = self._clock.time(), self._clock.monotonic()
        changed = {profile.job_id for profile in self._curves.refresh(now)}
        if self._nodes is not None:
            changed |= self._advance_runs(now, self._nodes)
        if self._validate_state:
            validate_curves(self._curves)
        try:
            self._save()
            self._unsaved = False
        except DatabaseUnavailableError as error:
            self._unsaved = True
            self._metrics.store_failed()
            self._log.error("runs could not be stored, trying again", error=str(error))
        if changed or not self._ready:
            self._ready = True
            known = [profile for profile in self._curves.profiles() if profile.job_id in changed]
            self._hub.publish(self._messages(known))
            self._metrics.published(len(known))
            self._log.debug("profiles changed", jobs=sorted(changed))

    def _advance_runs(self, now: float, nodes: dict[str, str]) -> set[str]:
        """Take the next step of the runs; returns the jobs of which watchers should be told."""
        views = self._views.of(self._jobs, now, nodes)
        free = without_fleets(nodes, self._jobs)
        view = ClusterView(now, len(free), views, Counter(free.values()))
        policy = CurveBasedPolicy(self._curves, self._section, [job.job_id for job in views], now)
        before = self._state
        after = advance(before, view, policy, self._section.profiling_parameters())
        if self._validate_state:
            validate_runs(after, view)
        self._metrics.advanced(before, after)
        self._state = after
        return changed_jobs(before, after)

    def _save(self) -> None:
        """Write the runs, and now and then what was measured: Monitor says that again after a restart."""
        self._store.save_runs(self._state)
        if self._clock.monotonic() - self._points_saved_at >= self._section.save_seconds:
            self._save_points()

    def _save_points(self) -> None:
        self._store.save_points(self._curves.families, self._curves.histories)
        self._points_saved_at = self._clock.monotonic()
