"""What services answer about one job in a viewer's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from malletrain.dashboard.identities import Viewer
from malletrain.observer import job_intake
from malletrain.observer.job_facts import CurveFact
from malletrain.observer.watching import Watcher
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.paging import all_pages_async
from malletrain.v1 import (
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
)

MAX_EVENTS = 5000
"""Rows of a journal that are kept, the newest."""


def job_manager(watcher: Watcher) -> Any:
    """Calls of JobManager that show no token by themselves."""
    return job_manager_pb2_grpc.JobManagerServiceStub(watcher.channel("job_manager"))


def no_answer_in_words(error: grpc.aio.AioRpcError) -> str:
    """Why JobManager gives no answer, for people."""
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return f"not permitted: {error.details()}"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "JobManager does not answer"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "JobManager is of a version that does not know this question"
    return error.details() or error.code().name


async def journal_of(
    watcher: Watcher, viewer: Viewer, job_id: str, known: Sequence[job_manager_pb2.JobEvent] = ()
) -> tuple[job_manager_pb2.JobEvent, ...]:
    """The journal of a job, oldest first.

    Args:
        watcher: Knows the services.
        viewer: Who asks.
        job_id: The job.
        known: Rows that are known; only what follows them is asked for.

    Raises:
        grpc.aio.AioRpcError: JobManager refuses, or does not answer.
    """
    events, call = list(known), job_manager(watcher).ListJobEvents
    token = str(events[-1].sequence) if events else ""
    request = job_manager_pb2.ListJobEventsRequest(job_id=job_id, page_token=token)
    async for page in all_pages_async(call, request, metadata=viewer.metadata, timeout=DEADLINE_SECONDS):
        events = [*events, *page.events][-MAX_EVENTS:]
    return tuple(events)


async def metrics_of(
    watcher: Watcher, viewer: Viewer, job_id: str, max_points: int, names: Sequence[str] = ()
) -> tuple[monitor_pb2.MetricHistory, ...]:
    """What a job's script has logged; none where the viewer may not see it, or Monitor is of an earlier version.

    Args:
        watcher: Knows the services.
        viewer: Who asks.
        job_id: The job.
        max_points: Most points of each metric; 0: all that are kept.
        names: Only these metrics; empty: all.

    Raises:
        grpc.aio.AioRpcError: Monitor does not answer.
    """
    stub = monitor_pb2_grpc.MonitorServiceStub(watcher.channel("monitor"))
    request = monitor_pb2.GetMetricHistoryRequest(job_id=job_id, max_points=max_points, names=names)
    histories: list[monitor_pb2.MetricHistory] = []
    try:
        pages = all_pages_async(stub.GetMetricHistory, request, metadata=viewer.metadata, timeout=DEADLINE_SECONDS)
        async for page in pages:
            histories += page.histories
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED):
            return ()
        raise
    return tuple(histories)


async def profile_of(watcher: Watcher, viewer: Viewer, job_id: str) -> CurveFact | None:
    """The curve of a job that has ended, say; None where the Profiler knows none.

    Raises:
        grpc.aio.AioRpcError: the Profiler refuses, or does not answer.
    """
    stub = profiler_pb2_grpc.ProfilerServiceStub(watcher.channel("profiler"))
    request = profiler_pb2.GetProfileRequest(job_id=job_id)
    try:
        answer = await stub.GetProfile(request, metadata=viewer.metadata, timeout=DEADLINE_SECONDS)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise
    return job_intake.curve_fact(answer.profile)
