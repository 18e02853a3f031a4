"""The services that the Allocator follows or asks, on one port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from malletrain.v1 import job_manager_pb2, profiler_pb2, resources_pb2, scavenger_pb2
from tests.support.builders import job_message
from tests.support.stand_ins import (
    StandInJobManager,
    StandInMonitor,
    StandInProfiler,
    StandInScavenger,
    serve,
)


def profiles(*names: str, scale_up_seconds: float = 2.0) -> list[profiler_pb2.Profile]:
    points = [profiler_pb2.ProfilePoint(nodes=1, rate=10), profiler_pb2.ProfilePoint(nodes=4, rate=30)]
    return [profiler_pb2.Profile(job_id=name, points=points, scale_up_seconds=scale_up_seconds) for name in names]


class StayingNodes(StandInScavenger):
    """Knows how long nodes stay; without an answer for `GetStays` it is one of the version before, which lists n2.

    Attributes:
        stays: The answer.
        stays_asked: What those who asked for stays knew already.
        listed: How often nodes were listed.
    """

    def __init__(self) -> None:
        super().__init__(("n1", "n2"), lambda name: resources_pb2.Node(name=name, expected_stay_seconds=9.0))
        self.stays: scavenger_pb2.GetStaysResponse | None = None
        self.stays_asked: list[str] = []
        self.listed = 0

    async def GetStays(self, request: scavenger_pb2.GetStaysRequest, context: Any) -> scavenger_pb2.GetStaysResponse:
        self.stays_asked.append(request.known)
        if self.stays is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            raise AssertionError
        return self.stays

    async def ListNodes(self, request: Any, context: Any) -> scavenger_pb2.ListNodesResponse:
        self.listed += 1
        return scavenger_pb2.ListNodesResponse(nodes=[resources_pb2.Node(name="n2", expected_stay_seconds=77)])


class Peers:
    """All of them: two nodes, one job, and the curves of two."""

    def __init__(self, job_manager: StandInJobManager | None = None) -> None:
        self.scavenger = StayingNodes()
        self.job_manager = job_manager or StandInJobManager(job_message("a"))
        self.profiler = StandInProfiler(*profiles("a", "b"))
        self.monitor = StandInMonitor()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with serve(self.scavenger, self.job_manager, self.profiler, self.monitor) as address:
            yield address

    def have_jobs(self, *jobs: resources_pb2.Job) -> None:
        """Have these jobs and no others, for those who connect from now on."""
        self.job_manager.jobs = {job.id: job for job in jobs}

    @property
    def applied(self) -> list[job_manager_pb2.ApplyPlanRequest]:
        return self.job_manager.applied

    def scales(self) -> list[dict[str, int]]:
        return [{entry.job_id: len(entry.nodes) for entry in plan.assignments} for plan in self.applied]
