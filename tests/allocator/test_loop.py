"""The control loop against real servers: coalescing, refusal, restarts of the Allocator and of its peers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from malletrain.allocator.plan_trigger import PlanTrigger
from malletrain.allocator.service import create
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.solving import solve
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.errors import StalePlanError
from malletrain.runtime.hub import Hub
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    allocator_pb2,
    allocator_pb2_grpc,
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2_grpc,
    profiler_pb2_grpc,
    resources_pb2,
    scavenger_pb2,
    scavenger_pb2_grpc,
)
from tests.allocator.peer_messages import job, jobs, nodes, profiles
from tests.support.access import CREDENTIAL, checked
from tests.support.waiting import wait_until_async


class FakePeers(
    scavenger_pb2_grpc.ScavengerServiceServicer,
    job_manager_pb2_grpc.JobManagerServiceServicer,
    profiler_pb2_grpc.ProfilerServiceServicer,
    monitor_pb2_grpc.MonitorServiceServicer,
):
    """The services that the loop follows or asks, on one port; tests set what they report."""

    def __init__(self) -> None:
        self.nodes: Hub[Any] = Hub()
        self.jobs: Hub[Any] = Hub()
        self.profiles: Hub[Any] = Hub()
        self.first_nodes = nodes("n1", "n2")
        self.first_jobs = jobs(job("a"))
        self.first_profiles = profiles("a", "b")
        self.applied: list[job_manager_pb2.ApplyPlanRequest] = []
        self.refusals = 0
        self.first_stays: scavenger_pb2.GetStaysResponse | None = None
        self.stays_asked: list[str] = []
        self.listed = 0

    async def WatchNodes(self, request: Any, context: Any) -> AsyncIterator[Any]:
        with self.nodes.subscribe() as news:
            yield self.first_nodes
            async for message in news:
                yield message

    async def GetStays(self, request: Any, context: Any) -> Any:
        self.stays_asked.append(request.known)
        if self.first_stays is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return self.first_stays

    async def ListNodes(self, request: Any, context: Any) -> Any:
        self.listed += 1
        return scavenger_pb2.ListNodesResponse(nodes=[resources_pb2.Node(name="n2", expected_stay_seconds=77)])

    async def WatchJobs(self, request: Any, context: Any) -> AsyncIterator[Any]:
        with self.jobs.subscribe() as news:
            yield self.first_jobs
            async for message in news:
                yield message

    async def WatchProfiles(self, request: Any, context: Any) -> AsyncIterator[Any]:
        with self.profiles.subscribe() as news:
            yield self.first_profiles
            async for message in news:
                yield message

    async def ApplyPlan(self, request: Any, context: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise StalePlanError("n2 has left")
        self.applied.append(request)
        return job_manager_pb2.ApplyPlanResponse(generation=request.generation)

    @asynccontextmanager
    async def serving(self, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
        host = ServiceHost(address, checked())
        host.add("malletrain.v1.ScavengerService", scavenger_pb2_grpc.add_ScavengerServiceServicer_to_server, self)
        host.add("malletrain.v1.JobManagerService", job_manager_pb2_grpc.add_JobManagerServiceServicer_to_server, self)
        host.add("malletrain.v1.ProfilerService", profiler_pb2_grpc.add_ProfilerServiceServicer_to_server, self)
        host.add("malletrain.v1.MonitorService", monitor_pb2_grpc.add_MonitorServiceServicer_to_server, self)
        port = await host.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await host.stop(0)

    def scales(self) -> list[dict[str, int]]:
        return [{entry.job_id: len(entry.nodes) for entry in plan.assignments} for plan in self.applied]


@asynccontextmanager
async def allocator(folder: Path, peers: str, **options: Any) -> AsyncIterator[Any]:
    addresses = Addresses(scavenger=peers, job_manager=peers, profiler=peers, monitor=peers)
    settings = Settings(state_dir=folder, addresses=addresses)
    service = create(settings, AllocatorSettings(**options), SystemClock(), CREDENTIAL)
    host = ServiceHost("127.0.0.1:0", checked())
    service.register(host)
    port = await host.start()
    running = asyncio.create_task(service.run())
    try:
        async with open_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
            yield allocator_pb2_grpc.AllocatorServiceStub(channel)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
        await host.stop(0)


@pytest.fixture
def peers() -> FakePeers:
    return FakePeers()


async def test_events_that_come_together_make_one_plan(peers: FakePeers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.3) as stub:
        await wait_until_async(lambda: peers.applied)
        assert peers.scales() == [{"a": 2}]
        for name in ("n3", "n4"):
            peers.nodes.publish(nodes(name, snapshot=False))
        peers.jobs.publish(jobs(job("b"), snapshot=False))
        await wait_until_async(lambda: len(peers.applied) == 2)
        assert sum(peers.scales()[1].values()) == 4
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.applied
        assert plan.trigger == "nodes joined: n3, n4; jobs arrived: b"
        assert plan.problem.expected_stay_seconds["n2"] == 77
        assert plan.allocation.solver == "dp"


async def test_what_comes_after_the_problem_was_solved_ahead_is_in_the_plan(peers: FakePeers, tmp_path: Path) -> None:
    peers.first_jobs = jobs(job("a"), job("b"))
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.6) as stub:
        await wait_until_async(lambda: peers.applied)
        asked = peers.listed
        peers.nodes.publish(nodes("n3", snapshot=False))
        await wait_until_async(lambda: peers.listed > asked)  # after that the problem is solved
        peers.nodes.publish(nodes("n4", snapshot=False))
        await wait_until_async(lambda: len(peers.applied) == 2)
        assert sum(peers.scales()[1].values()) == 4
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.trigger == "nodes joined: n3, n4"


async def test_curves_that_come_while_a_problem_is_solved_ahead_are_for_the_next_plan(
    peers: FakePeers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[PlanTrigger] = []
    goes_on = threading.Event()
    goes_on.set()
    note_curves = PlanTrigger.note_curves

    def note(trigger: PlanTrigger) -> None:
        seen.append(trigger)
        note_curves(trigger)

    def gated(*arguments: Any) -> Any:
        solving.set()
        assert goes_on.wait(10)
        return solve(*arguments)

    solving = threading.Event()
    monkeypatch.setattr(PlanTrigger, "note_curves", note)
    monkeypatch.setattr("malletrain.allocator.service.solve", gated)
    options = {"coalesce_seconds": 0.6, "replan_seconds": 0.1}
    async with peers.serving() as address, allocator(tmp_path, address, **options) as stub:
        await wait_until_async(lambda: peers.applied)
        solving.clear()
        goes_on.clear()
        peers.nodes.publish(nodes("n3", snapshot=False))
        await wait_until_async(solving.is_set)
        before = len(seen)
        peers.profiles.publish(profiles("a", scale_up_seconds=7.0))
        await wait_until_async(lambda: len(seen) > before)
        goes_on.set()
        await noted(stub, 3)
        second, third = [
            (await stub.GetPlan(allocator_pb2.GetPlanRequest(generation=generation), timeout=5)).plan
            for generation in (2, 3)
        ]
    assert (second.trigger, third.trigger) == ("nodes joined: n3", "curves changed")
    assert [plan.problem.jobs[0].scale_up_seconds for plan in (second, third)] == [2.0, 7.0]


async def test_stays_are_computed_from_what_the_scavenger_tells_of_them(peers: FakePeers, tmp_path: Path) -> None:
    now = SystemClock().time()
    peers.first_stays = scavenger_pb2.GetStaysResponse(
        token="t1",
        unix_seconds=now,
        horizon_seconds=500,
        complete=True,
        nodes=[
            scavenger_pb2.StayingNode(name="n2", idle_since_unix_seconds=now, idle_until_unix_seconds=now + 1e6),
            scavenger_pb2.StayingNode(name="gone", idle_since_unix_seconds=now),
        ],
    )
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        await noted(stub, 1)
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert dict(plan.problem.expected_stay_seconds) == {"n1": 9.0, "n2": 500.0}
        peers.nodes.publish(nodes("n3", snapshot=False))
        await noted(stub, 2)
        assert (peers.stays_asked, peers.listed) == (["", "t1"], 0)


async def test_a_scavenger_of_the_version_before_lists_its_nodes(peers: FakePeers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        for generation, name in enumerate(("n2", "n3", "n4"), start=1):
            peers.nodes.publish(nodes(name, snapshot=False))
            await noted(stub, generation)
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.problem.expected_stay_seconds["n2"] == 77
        assert (peers.stays_asked, peers.listed) == ([""], 3), "it is asked for what it lacks once"
        end_streams_and_change(peers)
        await wait_until_async(lambda: len(peers.stays_asked) == 2)


async def test_the_newest_and_an_earlier_plan_are_explained_also_after_a_restart(
    peers: FakePeers, tmp_path: Path
) -> None:
    async def explained(stub: Any, **asked: Any) -> allocator_pb2.PlanExplanation:
        request = allocator_pb2.ExplainPlanRequest(**asked)
        return (await stub.ExplainPlan(request, timeout=20)).explanation

    async with peers.serving() as address:
        async with allocator(tmp_path, address, coalesce_seconds=0.01) as stub:
            await wait_until_async(lambda: peers.applied)
            peers.nodes.publish(nodes("n3", snapshot=False))
            await wait_until_async(lambda: len(peers.applied) == 2)
        peers.first_nodes = nodes("n1", "n2", "n3")
        async with allocator(tmp_path, address) as stub:
            await wait_until_async(lambda: len(peers.applied) == 3)
            newest = await explained(stub, generation=2)
            assert (newest.generation, newest.applied, newest.parts_known) == (2, True, True)
            (job,) = newest.jobs
            assert (job.job_id, job.chosen.nodes, job.more.nodes) == ("a", 3, 4)
            assert job.more_reason == allocator_pb2.SCALE_REASON_POOL_TOO_SMALL
            # 30 / 4 samples/s for each node of the curve's line, less a stall of 2 s, over 120 s
            assert newest.parts[0].one_fewer_loss == pytest.approx(118 * (10 + 20 / 3 * 2 - (10 + 20 / 3)))
            earlier = await explained(stub, generation=1, node="n2")
            assert (earlier.generation, earlier.node.job_after) == (1, "a")
            for asked_for, told in ((0, 3), (1, 1), (2, 2)):
                request = allocator_pb2.GetPlanRequest(generation=asked_for)
                found = (await stub.GetPlan(request, timeout=20)).plan
                assert (found.generation, len(found.problem.nodes)) == (told, 2 if told == 1 else 3)
            for number, code in ((4, grpc.StatusCode.NOT_FOUND), (-1, grpc.StatusCode.INVALID_ARGUMENT)):
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await stub.GetPlan(allocator_pb2.GetPlanRequest(generation=number), timeout=20)
                assert failure.value.code() is code
                assert ("plan 4 is not kept; the newest is 3" if number == 4 else "generation") in (
                    failure.value.details() or ""
                )
            for asked, code in (
                ({"generation": 4}, grpc.StatusCode.NOT_FOUND),
                ({"job_id": "b"}, grpc.StatusCode.NOT_FOUND),
                ({"generation": -1}, grpc.StatusCode.INVALID_ARGUMENT),
                ({"job_id": "a", "node": "n1"}, grpc.StatusCode.INVALID_ARGUMENT),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await explained(stub, **asked)
                assert failure.value.code() is code


async def test_a_refused_plan_is_made_again(peers: FakePeers, tmp_path: Path) -> None:
    peers.refusals = 2
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        seen = []
        async for response in stub.WatchPlans(allocator_pb2.WatchPlansRequest(), timeout=20):
            seen.append(response.plan)
            if response.plan.applied:
                break
        assert peers.applied[0].generation == seen[-1].generation
        assert {plan.refusal for plan in seen[:-1]} <= {"n2 has left"}
        assert peers.applied[0].generation == 3


async def test_our_own_rescale_is_no_event(peers: FakePeers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.01):
        await wait_until_async(lambda: peers.applied)
        peers.jobs.publish(jobs(job("a", commanded_nodes=["n1", "n2"]), snapshot=False))
        peers.nodes.publish(scavenger_pb2.WatchNodesResponse(left=["n2"]))
        await wait_until_async(lambda: len(peers.applied) == 2)
        assert peers.scales() == [{"a": 2}, {"a": 1}]


async def noted(stub: Any, generation: int) -> None:
    """Wait until a plan has been applied, and the Allocator has noted that."""
    async for response in stub.WatchPlans(allocator_pb2.WatchPlansRequest(), timeout=20):
        if response.plan.applied and response.plan.generation >= generation:
            return


async def test_generations_go_on_after_a_restart(peers: FakePeers, tmp_path: Path) -> None:
    async with peers.serving() as address:
        async with allocator(tmp_path, address) as stub:
            await noted(stub, 1)
        async with allocator(tmp_path, address) as stub:
            await noted(stub, 2)
        peers.first_jobs = jobs(job("a", plan_generation=40))
        async with allocator(tmp_path / "lost", address):
            await wait_until_async(lambda: len(peers.applied) == 3)
    assert [plan.generation for plan in peers.applied] == [1, 2, 41]


async def test_how_long_workers_boot_is_known_after_a_restart(peers: FakePeers, tmp_path: Path) -> None:
    peers.first_profiles = profiles("a", "b", scale_up_seconds=0.0)
    peers.first_jobs = jobs(job("a", commanded_nodes=["n1"], confirmed_nodes=["n1"]))
    async with peers.serving() as address:
        async with allocator(tmp_path, address, coalesce_seconds=0.01) as stub:
            await noted(stub, 1)
            for nodes_, confirmed in ((["n1", "n2"], ["n1"]), (["n1", "n2"], ["n1", "n2"])):
                peers.jobs.publish(jobs(job("a", commanded_nodes=nodes_, confirmed_nodes=confirmed), snapshot=False))
            peers.nodes.publish(nodes("n3", snapshot=False))
            await noted(stub, 2)
            (measured,) = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan.problem.jobs
            assert measured.boot_seconds > 0
        peers.first_jobs = jobs(job("b", resources_pb2.JOB_STATE_WAITING))
        async with allocator(tmp_path, address) as stub:
            await noted(stub, 3)
            (other,) = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan.problem.jobs
            assert (other.id, other.boot_seconds) == ("b", measured.boot_seconds)


async def test_the_loop_survives_a_restart_of_its_peers(peers: FakePeers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address):
        await wait_until_async(lambda: peers.applied)
        end_streams_and_change(peers)
        await wait_until_async(lambda: len(peers.applied) == 2)
    assert peers.scales()[1] == {"a": 3}


def end_streams_and_change(peers: FakePeers) -> None:
    """End the streams as a restart does; the next snapshot differs."""
    peers.first_nodes = nodes("n1", "n2", "n3")
    peers.nodes.close()
    peers.nodes = Hub()


async def test_solving_is_stateless_and_checks_its_input(peers: FakePeers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        problem = allocator_pb2.AllocationProblem(nodes=["x"], forward_seconds=60)
        answer = await stub.Solve(allocator_pb2.SolveRequest(problem=problem), timeout=20)
        assert answer.allocation.status == "OPTIMAL"
        problem.forward_seconds = -1
        with pytest.raises(grpc.aio.AioRpcError, match="forward_seconds"):
            await stub.Solve(allocator_pb2.SolveRequest(problem=problem), timeout=20)
        with pytest.raises(grpc.aio.AioRpcError, match="time_limit_seconds"):
            await stub.Solve(allocator_pb2.SolveRequest(time_limit_seconds=-1), timeout=20)


@pytest.mark.parametrize(("span_pools", "given"), [(False, {"g1", "g2"}), (True, {"g1", "g2", "c1"})])
async def test_a_job_spans_pools_only_when_told_so(tmp_path: Path, span_pools: bool, given: set[str]) -> None:
    peers = FakePeers()
    pools = {"g1": "gpu", "g2": "gpu", "c1": "cpu"}
    joined = [resources_pb2.Node(name=name, pool=pool) for name, pool in pools.items()]
    peers.first_nodes = scavenger_pb2.WatchNodesResponse(snapshot=True, joined=joined, revision=1)
    async with peers.serving() as address, allocator(tmp_path, address, span_pools=span_pools):
        await wait_until_async(lambda: peers.applied)
        (assignment,) = peers.applied[0].assignments
        assert set(assignment.nodes) == given


async def test_changes_of_jobs_shorten_what_a_plan_looks_ahead(peers: FakePeers, tmp_path: Path) -> None:
    peers.first_jobs = jobs(job("a", commanded_nodes=["n1"]))
    async with (
        peers.serving() as address,
        allocator(tmp_path, address, forward_policy="expected", forward_seconds=1000.0) as stub,
    ):
        await wait_until_async(lambda: peers.applied)
        first = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert first.problem.forward_seconds == pytest.approx(1000.0, rel=0.01)
        peers.jobs.publish(jobs(job("a", commanded_nodes=["n1", "n2"]), snapshot=False))
        peers.nodes.publish(nodes("n3", snapshot=False))
        await wait_until_async(lambda: len(peers.applied) == 2)
        second = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        # One node changed beside ten that are assumed per node which the job has held: between one and two of them.
        assert 1000.0 * 10 / 11 - 1 <= second.problem.forward_seconds <= 1000.0 * 20 / 21 + 1
