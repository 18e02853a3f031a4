"""How many nodes there is work for."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Protocol

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.channel import open_channel
from malletrain.runtime.following import follow
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.runtime.node_needs_messages import needs_from_proto
from malletrain.runtime.peer import Peer
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc, resources_pb2


class NodeDemand(Protocol):
    """Tells how many nodes there is work for, and which."""

    def nodes(self) -> int:
        """Number of nodes."""

    def by_needs(self) -> Mapping[NodeNeeds, int]:
        """Number of nodes by what jobs need of each of them."""

    async def follow(self) -> None:
        """Keep the number up to date, until cancelled."""


class JobManagerDemand:
    """The sum of the largest scales of all jobs that have not ended. While JobManager is silent, it stays as it was.

    A fleet counts as one job: its members together use as many nodes as they need for their GPUs, and no more than its
    largest scale.
    """

    def __init__(self, job_manager: Peer, credential: ServiceCredential | None) -> None:
        self._job_manager = job_manager
        self._credential = credential
        self._max_nodes: dict[str, int] = {}
        self._needs: dict[str, NodeNeeds] = {}
        self._members: dict[str, resources_pb2.Job] = {}

    def nodes(self) -> int:
        """Number of nodes."""
        return sum(self._max_nodes.values()) + sum(self._of_fleets().values())

    def by_needs(self) -> Mapping[NodeNeeds, int]:
        """Number of nodes by what jobs need of each of them; members of a fleet need the same."""
        counts: dict[NodeNeeds, int] = {}
        members = {job.fleet_id: job for job in self._members.values()}
        for fleet_id, count in self._of_fleets().items():
            needs = needs_from_proto(members[fleet_id].spec.needs)
            counts[needs] = counts.get(needs, 0) + count
        for job_id, count in self._max_nodes.items():
            needs = self._needs.get(job_id, NO_NEEDS)
            counts[needs] = counts.get(needs, 0) + count
        return counts

    def _of_fleets(self) -> dict[str, int]:
        gpus: dict[str, int] = {}
        fleets = {job.fleet_id: job.spec.fleet for job in self._members.values()}
        for job in self._members.values():
            gpus[job.fleet_id] = gpus.get(job.fleet_id, 0) + job.spec.max_nodes
        return {
            name: min(spec.max_nodes, ceil(gpus[name] / max(1, spec.gpus_per_node))) for name, spec in fleets.items()
        }

    async def follow(self) -> None:
        """Keep the number up to date, until cancelled."""
        async with open_channel(self._job_manager, self._credential) as channel:
            stub = job_manager_pb2_grpc.JobManagerServiceStub(channel)
            request = job_manager_pb2.WatchJobsRequest(without_progress=True)
            await follow("jobs", lambda: stub.WatchJobs(request), self._handle)

    async def _handle(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        if message.snapshot:
            self._max_nodes, self._members, self._needs = {}, {}, {}
        for job in message.jobs:
            if job.state in FINAL_JOB_STATES:
                self._max_nodes.pop(job.id, None)
                self._members.pop(job.id, None)
                self._needs.pop(job.id, None)
            elif job.fleet_id:
                self._members[job.id] = job
            else:
                self._max_nodes[job.id] = job.spec.max_nodes
                if needs := needs_from_proto(job.spec.needs):
                    self._needs[job.id] = needs
