"""What the services have recorded of the time before the dashboard heard them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from malletrain.dashboard import intake
from malletrain.dashboard.facts import CurveFact, IdleFact, StallFact
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.v1 import (
    allocator_pb2,
    allocator_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
)

_JOBS_ASKED = 100
_AT_ONCE = 8
_NOT_SERVED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


class PastRecords:
    """Asks for it. Raises grpc.aio.AioRpcError where a service does not answer."""

    def __init__(self, channel: Callable[[str], grpc.aio.Channel]) -> None:
        """Ask nothing yet.

        Args:
            channel: The channel to a service, which shows a viewer's token.
        """
        self._channel = channel

    async def idle_changes(self, since: float) -> list[IdleFact]:
        """Changes of the idle set since a time, and the last whole set before it; none where they are not served."""
        stub = allocator_pb2_grpc.AllocatorServiceStub(self._channel("allocator"))
        found: list[IdleFact] = []
        token = ""
        while True:
            request = allocator_pb2.ListIdleChangesRequest(page_token=token)
            try:
                answer = await stub.ListIdleChanges(request, timeout=2 * DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() in _NOT_SERVED:
                    return []
                raise
            found += map(intake.idle_fact, answer.changes)
            wholes = [place for place, change in enumerate(found) if change.whole and change.time <= since]
            if wholes:
                del found[: wholes[-1]]
            token = answer.next_page_token
            if not token:
                return found

    async def stalls(self, job_ids: Sequence[str]) -> list[StallFact]:
        """The measured rescales of jobs."""
        stub = monitor_pb2_grpc.MonitorServiceStub(self._channel("monitor"))
        found: list[StallFact] = []
        for first in range(0, len(job_ids), _JOBS_ASKED):
            request = monitor_pb2.ListScalingRecordsRequest(job_ids=job_ids[first : first + _JOBS_ASKED])
            answer = await stub.ListScalingRecords(request, timeout=2 * DEADLINE_SECONDS)
            found += [stall for record in answer.records for stall in intake.stall_facts(record)]
        return found

    async def curves(self, job_ids: Sequence[str]) -> dict[str, CurveFact]:
        """The curves of jobs, as far as the Profiler knows them."""
        stub = profiler_pb2_grpc.ProfilerServiceStub(self._channel("profiler"))
        places = asyncio.Semaphore(_AT_ONCE)

        async def curve(job_id: str) -> CurveFact | None:
            async with places:
                try:
                    request = profiler_pb2.GetProfileRequest(job_id=job_id)
                    answer = await stub.GetProfile(request, timeout=2 * DEADLINE_SECONDS)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        return None
                    raise
            return intake.curve_fact(answer.profile)

        found = await asyncio.gather(*map(curve, job_ids))
        return {curve.job_id: curve for curve in found if curve is not None}
