"""Fleets in the control loop, against real servers: what is applied, and what a restart goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from malletrain.v1 import (
    allocator_pb2,
    fleet_pb2,
    job_manager_pb2,
    monitor_pb2,
    profiler_pb2,
    resources_pb2,
)
from tests.allocator.peers import Peers
from tests.allocator.test_loop import allocator
from tests.support.builders import job_message
from tests.support.stand_ins import StandInJobManager
from tests.support.waiting import wait_until_async

SPEC = fleet_pb2.FleetSpec(
    name="networks",
    planner=fleet_pb2.FLEET_PLANNER_FLEET,
    max_nodes=2,
    gpus_per_node=2,
    samples_per_epoch=100,
    active_share=0.5,
)


def member(name: str, *gpus: str, **fields: Any) -> resources_pb2.Job:
    return job_message(
        name, *gpus, name=name, fleet_id="f000001", wanted_nodes=gpus, target_samples=1000, fleet=SPEC, **fields
    )


class FleetManager(StandInJobManager):
    """Has a fleet of two members, of which one has trained on more than was told."""

    def __init__(self) -> None:
        super().__init__(member("a"), member("b"))
        self.listed = 0

    async def ListJobs(self, request: Any, context: Any) -> job_manager_pb2.ListJobsResponse:
        self.listed += 1
        return job_manager_pb2.ListJobsResponse(jobs=[resources_pb2.Job(id="a", fleet_id="f000001", samples=990)])


class FleetPeers(Peers):
    """Peers that have that fleet, and a Monitor that does not answer."""

    def __init__(self) -> None:
        self.fleet = FleetManager()
        super().__init__(self.fleet)
        self.monitor.is_away = True

    def gpus(self) -> dict[str, list[str]]:
        """What plans have given to the jobs that there are: each names those that it changes."""
        given = {entry.job_id: list(entry.nodes) for plan in self.applied for entry in plan.assignments}
        return {job_id: gpus for job_id, gpus in given.items() if job_id in self.job_manager.jobs}


async def test_members_get_gpus_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    peers = FleetPeers()
    async with peers.serving() as address:
        async with allocator(tmp_path, address) as stub:
            await wait_until_async(lambda: peers.applied)
            gpus = peers.gpus()
            assert sorted(name for names in gpus.values() for name in names) == ["n1#0", "n1#1", "n2#0", "n2#1"]
            plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
            assert [job.id for job in plan.problem.jobs] == ["f000001"]
            assert [set(entry.nodes) for entry in plan.allocation.assignments] == [{"n1", "n2"}]
            (decision,) = plan.fleets
            assert decision.planner == fleet_pb2.FLEET_PLANNER_FLEET
            assert {entry.job_id: list(entry.nodes) for entry in decision.members} == gpus
            assert peers.fleet.listed
        # "b" ends while no Allocator runs: the flotilla goes on, since half of it is enough.
        peers.have_jobs(member("a", *gpus["a"]))
        before = len(peers.applied)
        async with allocator(tmp_path, address) as stub:
            await wait_until_async(lambda: len(peers.applied) > before)
            assert peers.gpus() == {"a": gpus["a"]}
            plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
            assert list(plan.fleets[0].flotilla) == list(decision.flotilla)


async def test_by_remaining_work_fresh_samples_count(tmp_path: Path) -> None:
    peers = FleetPeers()
    entries = [member("a"), member("b")]
    for entry in entries:
        entry.spec.fleet.planner = fleet_pb2.FLEET_PLANNER_MAKESPAN
    peers.have_jobs(*entries)
    async with peers.serving() as address, allocator(tmp_path, address):
        await wait_until_async(lambda: peers.applied)
        assert {name: len(gpus) for name, gpus in peers.gpus().items()} == {"a": 1, "b": 3}


async def test_what_feeds_can_prepare_is_believed_where_the_fleet_does_not_say_it(tmp_path: Path) -> None:
    peers = FleetPeers()
    entries = [member("a"), member("b")]
    for entry in entries:
        entry.spec.fleet.planner = fleet_pb2.FLEET_PLANNER_AUTO
        entry.spec.fleet.feed = "data:samples"
        entry.spec.environment["MALLETRAIN_FEED"] = "data:samples"
    peers.have_jobs(*entries)
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        await wait_until_async(lambda: peers.applied)
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.fleets[0].preprocess_rate == 0, "nobody has said anything"
        # Two processes, half a second a sample.
        feed = monitor_pb2.FeedReport(received_samples=100, cpu_seconds=0.5, processes=2)
        peers.monitor.progress = {name: monitor_pb2.Progress(job_id=name, feed=feed) for name in ("a", "b")}
        peers.monitor.is_away = False
        peers.scavenger.tell("n3")
        await wait_until_async(lambda: len(peers.applied) > 1)
        (decision,) = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan.fleets
        assert decision.preprocess_rate == 4
        assert decision.pace <= 4
        # What is known stays known while Monitor does not answer.
        peers.monitor.is_away = True
        peers.scavenger.tell("n4")
        peers.job_manager.put(*(_on(entry, peers.gpus()[entry.id]) for entry in entries))
        await wait_until_async(lambda: len(peers.applied) > 2)
        (decision,) = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan.fleets
        assert decision.preprocess_rate == 4


async def test_a_member_that_ends_leads_to_a_plan(tmp_path: Path) -> None:
    peers = FleetPeers()
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        await wait_until_async(lambda: peers.applied)
        gpus = peers.gpus()
        peers.job_manager.put(member("b", *gpus["b"], state=resources_pb2.JOB_STATE_STOPPING))
        await wait_until_async(lambda: len(peers.applied) > 1)
        peers.job_manager.put(member("b", state=resources_pb2.JOB_STATE_COMPLETED))
        await wait_until_async(lambda: len(peers.applied) > 2)
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.trigger.startswith("GPUs released: ")


async def test_a_member_that_never_reports_is_planned_by_what_is_assumed_also_after_a_restart(tmp_path: Path) -> None:
    peers = FleetPeers()
    entries = [member("a"), member("b")]
    for entry in entries:
        entry.spec.fleet.planner = fleet_pb2.FLEET_PLANNER_MAKESPAN
        entry.spec.profile = resources_pb2.PROFILE_MODE_NEVER
    peers.have_jobs(*entries)
    for point in peers.profiler.profiles["b"].points:
        point.source = profiler_pb2.CURVE_SOURCE_PRIOR
    async with peers.serving() as address:
        async with allocator(tmp_path, address, fleet_measuring_seconds=0.5) as stub:
            await wait_until_async(lambda: peers.applied)
            gpus = peers.gpus()
            assert {name: len(own) for name, own in gpus.items()} == {"a": 1, "b": 1}
            peers.job_manager.put(*(_on(entry, gpus[entry.id]) for entry in entries))
            await wait_until_async(lambda: sum(map(len, peers.gpus().values())) == 4)
            plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
            assert plan.trigger == "rates not measured in time: b"
            assert plan.fleets[0].reason.endswith("rates are assumed that did not come in time: b on 1 GPU in 0.5 s")
        gpus = peers.gpus()
        peers.have_jobs(*(_on(entry, gpus[entry.id]) for entry in entries))
        before = len(peers.applied)
        async with allocator(tmp_path, address, fleet_measuring_seconds=1000.0):
            await wait_until_async(lambda: len(peers.applied) > before)
            assert peers.gpus() == gpus


def _on(entry: resources_pb2.Job, gpus: list[str]) -> resources_pb2.Job:
    moved = resources_pb2.Job()
    moved.CopyFrom(entry)
    for nodes_of in (moved.wanted_nodes, moved.commanded_nodes, moved.confirmed_nodes):
        del nodes_of[:]
        nodes_of.extend(gpus)
    return moved
