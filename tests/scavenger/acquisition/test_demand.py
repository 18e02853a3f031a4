"""For how many nodes there is work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.scavenger.acquisition.demand import JobManagerDemand
from malletrain.v1 import fleet_pb2, resources_pb2
from tests.support.access import CREDENTIAL
from tests.support.builders import job_message
from tests.support.channels import stand_in
from tests.support.stand_ins import StandInJobManager, serve
from tests.support.waiting import wait_until_async


def job(
    number: int, max_nodes: int, fleet: fleet_pb2.FleetSpec | None = None, *, ended: bool = False
) -> resources_pb2.Job:
    state = resources_pb2.JOB_STATE_COMPLETED if ended else resources_pb2.JOB_STATE_QUEUED
    fleet_id = "f000002" if fleet else ""
    return job_message(f"j{number:06d}", max_nodes=max_nodes, fleet=fleet, fleet_id=fleet_id, state=state)


@asynccontextmanager
async def following(address: str) -> AsyncIterator[JobManagerDemand]:
    demand = JobManagerDemand(stand_in("job_manager", address), CREDENTIAL)
    task = asyncio.create_task(demand.follow())
    yield demand
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("most", "gpus_per_node", "expected"), [(10, 4, 2), (1, 4, 1), (10, 0, 6), (4, 0, 4)])
async def test_a_fleet_is_one_job_whose_members_share_nodes(most: int, gpus_per_node: int, expected: int) -> None:
    fleet = fleet_pb2.FleetSpec(max_nodes=most, gpus_per_node=gpus_per_node)
    job_manager = StandInJobManager(job(1, 3), job(2, 4, fleet), job(3, 2, fleet))
    async with serve(job_manager) as address, following(address) as demand:
        await wait_until_async(lambda: demand.nodes() == 3 + expected)
        job_manager.put(job(1, 3, ended=True), job(2, 4, fleet, ended=True))
        await wait_until_async(lambda: demand.nodes() == min(most, 1 if gpus_per_node else 2))
        job_manager.put(job(3, 2, fleet, ended=True))
        await wait_until_async(lambda: demand.nodes() == 0)


async def test_nodes_are_told_by_what_jobs_need_of_them() -> None:
    gpu = resources_pb2.NodeNeeds(gpu="a100")
    fleet = fleet_pb2.FleetSpec(max_nodes=2, gpus_per_node=4)
    job_manager = StandInJobManager(
        job(1, 3), job(2, 4, fleet), job_message("j000003", max_nodes=2, needs=gpu), job_message("j000004", needs=gpu)
    )
    async with serve(job_manager) as address, following(address) as demand:
        await wait_until_async(lambda: demand.by_needs() == {NO_NEEDS: 4, NodeNeeds(gpu="a100"): 6})
        job_manager.put(job_message("j000003", needs=gpu, state=resources_pb2.JOB_STATE_COMPLETED))
        job_manager.put(job_message("j000004", needs=gpu, state=resources_pb2.JOB_STATE_COMPLETED))
        await wait_until_async(lambda: demand.by_needs() == {NO_NEEDS: 4})
        needy = job_message("j000002", max_nodes=4, fleet=fleet, fleet_id="f000002", needs=gpu)
        job_manager.put(needy)
        await wait_until_async(lambda: demand.by_needs() == {NO_NEEDS: 3, NodeNeeds(gpu="a100"): 1})


async def test_changes_of_samples_alone_are_not_asked_for() -> None:
    job_manager = StandInJobManager(job(1, 7))
    async with serve(job_manager) as address, following(address) as demand:
        await wait_until_async(lambda: demand.nodes() == 7)
        assert [request.without_progress for request in job_manager.watched] == [True]
