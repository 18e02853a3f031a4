"""How many nodes there is work for, as JobManager tells."""

from __future__ import annotations

from malletrain.runtime.channel import open_channel
from malletrain.runtime.following import follow
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc, resources_pb2

_FINAL = (
    resources_pb2.JOB_STATE_COMPLETED,
    resources_pb2.JOB_STATE_FAILED,
    resources_pb2.JOB_STATE_CANCELLED,
)


class Demand:
    """The sum of the largest scales of all jobs that have not ended. What was last known holds while nobody answers."""

    def __init__(self, address: str) -> None:
        """Know of no job yet.

        Args:
            address: HOST:PORT of JobManager.
        """
        self._address = address
        self._most: dict[str, int] = {}

    def nodes(self) -> int:
        """Number of nodes."""
        return sum(self._most.values())

    async def follow(self) -> None:
        """Keep it up to date, until cancelled."""
        async with open_channel(self._address) as channel:
            stub = job_manager_pb2_grpc.JobManagerServiceStub(channel)
            await follow("jobs", lambda: stub.WatchJobs(job_manager_pb2.WatchJobsRequest()), self.see)

    async def see(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        """Take over what JobManager tells."""
        if message.snapshot:
            self._most = {}
        for job in message.jobs:
            if job.state in _FINAL:
                self._most.pop(job.id, None)
            else:
                self._most[job.id] = job.spec.max_nodes
