"""For how many nodes there is work."""

from __future__ import annotations

import asyncio

import pytest

from malletrain.scavenger.acquisition.demand import JobManagerDemand
from malletrain.v1 import fleet_pb2, job_manager_pb2, resources_pb2
from tests.scavenger.running import releasing
from tests.support.access import CREDENTIAL
from tests.support.waiting import wait_until_async


def job(
    number: int, max_nodes: int, fleet: fleet_pb2.FleetSpec | None = None, *, ended: bool = False
) -> resources_pb2.Job:
    spec = resources_pb2.JobSpec(max_nodes=max_nodes, fleet=fleet)
    state = resources_pb2.JOB_STATE_COMPLETED if ended else resources_pb2.JOB_STATE_QUEUED
    return resources_pb2.Job(id=f"j{number:06d}", spec=spec, state=state, fleet_id="f000002" if fleet else "")


@pytest.mark.parametrize(("most", "gpus_per_node", "expected"), [(10, 4, 2), (1, 4, 1), (10, 0, 6), (4, 0, 4)])
async def test_a_fleet_is_one_job_whose_members_share_nodes(most: int, gpus_per_node: int, expected: int) -> None:
    demand = JobManagerDemand("127.0.0.1:9", None)
    fleet = fleet_pb2.FleetSpec(max_nodes=most, gpus_per_node=gpus_per_node)
    jobs = [job(1, 3), job(2, 4, fleet), job(3, 2, fleet)]
    await demand._handle(job_manager_pb2.WatchJobsResponse(snapshot=True, jobs=jobs))
    assert demand.nodes() == 3 + expected
    ended = [job(1, 3, ended=True), job(2, 4, fleet, ended=True)]
    await demand._handle(job_manager_pb2.WatchJobsResponse(jobs=ended))
    assert demand.nodes() == min(most, 1 if gpus_per_node else 2)
    await demand._handle(job_manager_pb2.WatchJobsResponse(snapshot=True, jobs=[]))
    assert demand.nodes() == 0


async def test_changes_of_samples_alone_are_not_asked_for() -> None:
    async with releasing(wanted=7) as (releases, address):
        demand = JobManagerDemand(address, CREDENTIAL)
        following = asyncio.create_task(demand.follow())
        await wait_until_async(lambda: demand.nodes() == 7)
        assert [request.without_progress for request in releases.watched] == [True]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
