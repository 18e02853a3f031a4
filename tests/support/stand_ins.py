"""Stand-ins of the services, on a real server: they serve what a test gives them, and keep what they are asked.

Whoever watches one is told first what there is and then what changes, as by the service itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from malletrain.runtime.errors import StalePlanError
from malletrain.runtime.hub import Hub
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
from tests.support.access import checked
from tests.support.channels import stand_in_credentials


@asynccontextmanager
async def serve(
    *servicers: object, address: str = "127.0.0.1:0", tls: bool = True, **options: Any
) -> AsyncIterator[str]:
    """Serve services on one port; yields its address.

    Args:
        *servicers: Objects of subclasses of the generated classes.
        address: Where to listen.
        tls: Whether with the certificate of stand-ins.
        **options: Others of `ServiceHost`.
    """
    host = ServiceHost(address, checked(), credentials=stand_in_credentials() if tls else None, **options)
    for servicer in servicers:
        for base in type(servicer).__mro__:
            if base.__module__.endswith("_pb2_grpc"):
                add = getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")
                host.add(f"malletrain.v1.{base.__name__.removesuffix('Servicer')}", add, servicer)
    port = await host.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await host.stop(0)


class StandInScavenger(scavenger_pb2_grpc.ScavengerServiceServicer):
    """Tells of idle nodes.

    Attributes:
        nodes: Those that are idle, by name.
        failures: Nodes and causes of the failures that were reported.
    """

    def __init__(
        self, names: Iterable[str] = (), make: Callable[[str], resources_pb2.Node] = lambda name: node_message(name)
    ) -> None:
        self.make = make
        self.nodes = {name: make(name) for name in names}
        self.failures: list[tuple[str, str]] = []
        self._changes: Hub[scavenger_pb2.WatchNodesResponse] = Hub()

    def tell(self, joined: str = "", left: str = "") -> None:
        """Have nodes join and leave now; names are words."""
        added = {name: self.make(name) for name in joined.split()}
        self.nodes = {name: node for name, node in self.nodes.items() if name not in left.split()} | added
        change = scavenger_pb2.WatchNodesResponse(joined=added.values(), left=left.split())
        change.event_time.GetCurrentTime()
        self._changes.publish(change)

    def end_streams(self) -> None:
        """As a restart does."""
        self._changes.close()
        self._changes = Hub()

    async def WatchNodes(self, request: Any, context: Any) -> AsyncIterator[scavenger_pb2.WatchNodesResponse]:
        with self._changes.subscribe() as changes:
            yield scavenger_pb2.WatchNodesResponse(snapshot=True, joined=self.nodes.values())
            async for change in changes:
                yield change

    async def ReportNodeFailures(
        self, request: scavenger_pb2.ReportNodeFailuresRequest, context: Any
    ) -> scavenger_pb2.ReportNodeFailuresResponse:
        self.failures += [(failure.node, failure.by) for failure in request.failures]
        return scavenger_pb2.ReportNodeFailuresResponse()


def node_message(name: str) -> resources_pb2.Node:
    """Nodes that are called g.. have two GPUs."""
    return resources_pb2.Node(name=name, gpus=2 if name.startswith("g") else 0)


class StandInJobManager(job_manager_pb2_grpc.JobManagerServiceServicer):
    """Tells of jobs, takes plans, and releases nodes when it may.

    Attributes:
        jobs: By identifier.
        watched: Requests of those who watch jobs.
        refusals: How many of the next plans it refuses.
        applied: Plans that it has taken.
        asked: Nodes that were to be released, request by request.
        may_release: Set once it answers those requests.
        keeps: Nodes that it does not release.
    """

    def __init__(self, *jobs: resources_pb2.Job) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.watched: list[job_manager_pb2.WatchJobsRequest] = []
        self.refusals = 0
        self.applied: list[job_manager_pb2.ApplyPlanRequest] = []
        self.asked: list[list[str]] = []
        self.may_release = asyncio.Event()
        self.keeps: set[str] = set()
        self._changes: Hub[tuple[resources_pb2.Job, ...]] = Hub()

    def put(self, *jobs: resources_pb2.Job) -> None:
        """Add or change jobs now."""
        self.jobs.update((job.id, job) for job in jobs)
        self._changes.publish(jobs)

    async def WatchJobs(
        self, request: job_manager_pb2.WatchJobsRequest, context: Any
    ) -> AsyncIterator[job_manager_pb2.WatchJobsResponse]:
        self.watched.append(request)
        with self._changes.subscribe() as changes:
            yield job_manager_pb2.WatchJobsResponse(snapshot=True, jobs=self.jobs.values())
            async for jobs in changes:
                yield job_manager_pb2.WatchJobsResponse(jobs=jobs)

    async def ApplyPlan(
        self, request: job_manager_pb2.ApplyPlanRequest, context: Any
    ) -> job_manager_pb2.ApplyPlanResponse:
        if self.refusals:
            self.refusals -= 1
            raise StalePlanError("n2 has left")
        self.applied.append(request)
        return job_manager_pb2.ApplyPlanResponse(generation=request.generation)

    async def ReleaseNodes(
        self, request: job_manager_pb2.ReleaseNodesRequest, context: Any
    ) -> job_manager_pb2.ReleaseNodesResponse:
        self.asked.append(list(request.nodes))
        await self.may_release.wait()
        return job_manager_pb2.ReleaseNodesResponse(released=[name for name in request.nodes if name not in self.keeps])


class StandInMonitor(monitor_pb2_grpc.MonitorServiceServicer):
    """Tells of progress.

    Attributes:
        progress: By job.
        scaling: What it has measured, by job.
        commands: Jobs and types of commands that were sent.
        is_away: Whether it refuses to answer.
    """

    def __init__(self) -> None:
        self.progress: dict[str, monitor_pb2.Progress] = {}
        self.scaling: dict[str, monitor_pb2.ScalingRecord] = {}
        self.commands: list[tuple[str, int]] = []
        self.is_away = False
        self._changes: Hub[monitor_pb2.Progress] = Hub()

    def tell(self, job_id: str, samples: int, *, now: bool = True) -> None:
        """Set a job's samples; those who watch are told now, or not at all."""
        self.progress[job_id] = monitor_pb2.Progress(job_id=job_id, samples=samples)
        if now:
            self._changes.publish(self.progress[job_id])

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[monitor_pb2.WatchProgressResponse]:
        with self._changes.subscribe() as changes:
            yield monitor_pb2.WatchProgressResponse(progress=self.progress.values())
            async for change in changes:
                yield monitor_pb2.WatchProgressResponse(progress=[change])

    async def GetProgress(
        self, request: monitor_pb2.GetProgressRequest, context: Any
    ) -> monitor_pb2.GetProgressResponse:
        if self.is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        known = [self.progress[job_id] for job_id in request.job_ids if job_id in self.progress]
        return monitor_pb2.GetProgressResponse(progress=known)

    async def ListScalingRecords(
        self, request: monitor_pb2.ListScalingRecordsRequest, context: Any
    ) -> monitor_pb2.ListScalingRecordsResponse:
        if self.is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        known = [self.scaling[job_id] for job_id in request.job_ids if job_id in self.scaling]
        return monitor_pb2.ListScalingRecordsResponse(records=known)

    async def SendCommand(
        self, request: monitor_pb2.SendCommandRequest, context: Any
    ) -> monitor_pb2.SendCommandResponse:
        self.commands.append((request.job_id, request.type))
        return monitor_pb2.SendCommandResponse(reporters=1)


class StandInProfiler(profiler_pb2_grpc.ProfilerServiceServicer):
    """Tells of profiles.

    Attributes:
        profiles: By job.
    """

    def __init__(self, *profiles: profiler_pb2.Profile) -> None:
        self.profiles = {profile.job_id: profile for profile in profiles}
        self._changes: Hub[tuple[profiler_pb2.Profile, ...]] = Hub()

    def put(self, *profiles: profiler_pb2.Profile) -> None:
        """Add or change profiles now."""
        self.profiles.update((profile.job_id, profile) for profile in profiles)
        self._changes.publish(profiles)

    async def WatchProfiles(self, request: Any, context: Any) -> AsyncIterator[profiler_pb2.WatchProfilesResponse]:
        with self._changes.subscribe() as changes:
            yield profiler_pb2.WatchProfilesResponse(profiles=self.profiles.values())
            async for profiles in changes:
                yield profiler_pb2.WatchProfilesResponse(profiles=profiles)
