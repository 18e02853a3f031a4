"""What the services have recorded of the time before the dashboard heard them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from malletrain.observer import intake
from malletrain.observer.facts import IdleFact, StallFact
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.paging import all_pages_async
from malletrain.v1 import (
    allocator_pb2,
    allocator_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
)

_JOBS_ASKED = 100
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
        request = allocator_pb2.ListIdleChangesRequest()
        try:
            async for page in all_pages_async(stub.ListIdleChanges, request, timeout=2 * DEADLINE_SECONDS):
                found += map(intake.idle_fact, page.changes)
                wholes = [place for place, change in enumerate(found) if change.whole and change.time <= since]
                if wholes:
                    del found[: wholes[-1]]
        except grpc.aio.AioRpcError as error:
            if error.code() in _NOT_SERVED:
                return []
            raise
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
