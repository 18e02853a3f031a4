"""The control loop against real servers: coalescing, refusal, restarts of the Allocator and of its peers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from malletrain.allocator.machine.plan_trigger import PlanTrigger
from malletrain.allocator.service import create
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.solvers.solving import solve
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    allocator_pb2,
    allocator_pb2_grpc,
    profiler_pb2,
    resources_pb2,
    scavenger_pb2,
)
from tests.allocator.peers import Peers, profiles
from tests.support.access import CREDENTIAL, checked
from tests.support.builders import job_message
from tests.support.channels import knowing_stand_ins, plain_channel
from tests.support.waiting import wait_until_async


@asynccontextmanager
async def allocator(folder: Path, peers: str, *, validate: bool = False, **options: Any) -> AsyncIterator[Any]:
    addresses = Addresses(scavenger=peers, job_manager=peers, profiler=peers, monitor=peers)
    settings = knowing_stand_ins(Settings(state_dir=folder, addresses=addresses, validate_state=validate))
    service = create(settings, AllocatorSettings(**options), SystemClock(), CREDENTIAL)
    host = ServiceHost("127.0.0.1:0", checked())
    service.register(host)
    port = await host.start()
    running = asyncio.create_task(service.run())
    try:
        async with plain_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
            yield allocator_pb2_grpc.AllocatorServiceStub(channel)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
        await host.stop(0)


@pytest.fixture
def peers() -> Peers:
    return Peers()


async def test_events_that_come_together_make_one_plan(peers: Peers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.3) as stub:
        await wait_until_async(lambda: peers.applied)
        assert peers.scales() == [{"a": 2}]
        for name in ("n3", "n4"):
            peers.scavenger.tell(name)
        peers.job_manager.put(job_message("b"))
        await wait_until_async(lambda: len(peers.applied) == 2)
        assert sum(peers.scales()[1].values()) == 4
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.applied
        assert plan.trigger == "nodes joined: n3, n4; jobs arrived: b"
        assert plan.allocation.solver == "dp"


async def test_what_comes_after_the_problem_was_solved_ahead_is_in_the_plan(peers: Peers, tmp_path: Path) -> None:
    peers.have_jobs(job_message("a"), job_message("b"))
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.6) as stub:
        await wait_until_async(lambda: peers.applied)
        asked = peers.scavenger.listed
        peers.scavenger.tell("n3")
        await wait_until_async(lambda: peers.scavenger.listed > asked)  # after that the problem is solved
        peers.scavenger.tell("n4")
        await wait_until_async(lambda: len(peers.applied) == 2)
        assert sum(peers.scales()[1].values()) == 4
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert plan.trigger == "nodes joined: n3, n4"


async def test_curves_that_come_while_a_problem_is_solved_ahead_are_for_the_next_plan(
    peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        peers.scavenger.tell("n3")
        await wait_until_async(solving.is_set)
        before = len(seen)
        peers.profiler.put(*profiles("a", scale_up_seconds=7.0))
        await wait_until_async(lambda: len(seen) > before)
        goes_on.set()
        await noted(stub, 3)
        second, third = [
            (await stub.GetPlan(allocator_pb2.GetPlanRequest(generation=generation), timeout=5)).plan
            for generation in (2, 3)
        ]
    assert (second.trigger, third.trigger) == ("nodes joined: n3", "curves changed")
    assert [plan.problem.jobs[0].scale_up_seconds for plan in (second, third)] == [2.0, 7.0]


async def plan_with_stay_of_n2(stub: Any, peers: Peers, seconds: float) -> allocator_pb2.Plan:
    """The first plan that knows how long n2 stays. A plan waits half a second for the answer, which may take longer."""
    for generation in range(1, 20):
        await noted(stub, generation)
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        if plan.problem.expected_stay_seconds["n2"] == seconds:
            return plan
        peers.scavenger.tell(f"n{generation + 2}")
    raise AssertionError("no plan knows how long n2 stays")


async def test_stays_are_computed_from_what_the_scavenger_tells_of_them(peers: Peers, tmp_path: Path) -> None:
    now = SystemClock().time()
    peers.scavenger.stays = scavenger_pb2.GetStaysResponse(
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
        plan = await plan_with_stay_of_n2(stub, peers, 500.0)
        assert plan.problem.expected_stay_seconds["n1"] == 9.0
        names = (f"n{number}" for number in count(90))

        def is_asked_again() -> bool:
            peers.scavenger.tell(next(names))
            return len(peers.scavenger.stays_asked) > 1

        await wait_until_async(is_asked_again)  # not for each plan of many that follow each other
        assert (peers.scavenger.stays_asked[-2:], peers.scavenger.listed) == (["", "t1"], 0)


async def test_a_scavenger_of_the_version_before_lists_its_nodes(peers: Peers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        plan = await plan_with_stay_of_n2(stub, peers, 77.0)
        asked, listed = len(peers.scavenger.stays_asked), peers.scavenger.listed
        peers.scavenger.tell("n99")
        await noted(stub, plan.generation + 1)
        assert (len(peers.scavenger.stays_asked), peers.scavenger.listed) == (asked, listed + 1), (
            "it is not asked again for what it lacks"
        )
        end_streams_and_change(peers)
        await wait_until_async(lambda: len(peers.scavenger.stays_asked) == asked + 1)


async def test_the_newest_and_an_earlier_plan_are_explained_also_after_a_restart(peers: Peers, tmp_path: Path) -> None:
    async def explained(stub: Any, **asked: Any) -> allocator_pb2.PlanExplanation:
        request = allocator_pb2.ExplainPlanRequest(**asked)
        return (await stub.ExplainPlan(request, timeout=20)).explanation

    async with peers.serving() as address:
        async with allocator(tmp_path, address, coalesce_seconds=0.01) as stub:
            await wait_until_async(lambda: {"a": 2} in peers.scales())
            first = peers.applied[-1].generation
            peers.scavenger.tell("n3")
            await wait_until_async(lambda: {"a": 3} in peers.scales())
            second = peers.applied[-1].generation
            await noted(stub, second)
        async with allocator(tmp_path, address) as stub:
            third = second + 1
            await noted(stub, third)
            newest = await explained(stub, generation=second)
            assert (newest.generation, newest.applied, newest.parts_known) == (second, True, True)
            (job,) = newest.jobs
            assert (job.job_id, job.chosen.nodes, job.more.nodes) == ("a", 3, 4)
            assert job.more_reason == allocator_pb2.SCALE_REASON_POOL_TOO_SMALL
            # 30 / 4 samples/s for each node of the curve's line, less a stall of 2 s, over 120 s
            assert newest.parts[0].one_fewer_loss == pytest.approx(118 * (10 + 20 / 3 * 2 - (10 + 20 / 3)))
            earlier = await explained(stub, generation=first, node="n2")
            assert (earlier.generation, earlier.node.job_after) == (first, "a")
            for asked_for, told in ((0, third), (first, first), (second, second)):
                request = allocator_pb2.GetPlanRequest(generation=asked_for)
                found = (await stub.GetPlan(request, timeout=20)).plan
                assert (found.generation, len(found.problem.nodes)) == (told, 2 if told == first else 3)
            for number, code in ((third + 1, grpc.StatusCode.NOT_FOUND), (-1, grpc.StatusCode.INVALID_ARGUMENT)):
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await stub.GetPlan(allocator_pb2.GetPlanRequest(generation=number), timeout=20)
                assert failure.value.code() is code
            for asked, code in (
                ({"generation": third + 1}, grpc.StatusCode.NOT_FOUND),
                ({"job_id": "b"}, grpc.StatusCode.NOT_FOUND),
                ({"generation": -1}, grpc.StatusCode.INVALID_ARGUMENT),
                ({"job_id": "a", "node": "n1"}, grpc.StatusCode.INVALID_ARGUMENT),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await explained(stub, **asked)
                assert failure.value.code() is code


WRONG_POINTS = {
    "no number": [profiler_pb2.ProfilePoint(nodes=1, rate=float("nan")), profiler_pb2.ProfilePoint(nodes=4, rate=30)],
    "infinite": [profiler_pb2.ProfilePoint(nodes=1, rate=float("inf"))],
    "descending": [profiler_pb2.ProfilePoint(nodes=4, rate=30), profiler_pb2.ProfilePoint(nodes=1, rate=10)],
    "negative": [profiler_pb2.ProfilePoint(nodes=-3, rate=-10)],
}


@pytest.mark.parametrize("points", WRONG_POINTS.values(), ids=WRONG_POINTS)
async def test_others_are_planned_where_a_job_has_wrong_figures(
    points: list[profiler_pb2.ProfilePoint], peers: Peers, tmp_path: Path
) -> None:
    peers.have_jobs(job_message("a"), job_message("b"))
    peers.profiler.put(profiler_pb2.Profile(job_id="b", points=points))
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.01) as stub:
        await wait_until_async(lambda: {"a": 2} in peers.scales())
        await noted(stub, peers.applied[-1].generation)
        plan = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=20)).plan
        assert list(plan.left_out) == ["b"]
        with pytest.raises(grpc.aio.AioRpcError, match="its figures are wrong") as failure:
            await stub.ExplainPlan(allocator_pb2.ExplainPlanRequest(job_id="b"), timeout=20)
        assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_refused_plan_is_made_again(peers: Peers, tmp_path: Path) -> None:
    peers.job_manager.refusals = 2
    async with peers.serving() as address, allocator(tmp_path, address) as stub:
        seen = []
        async for response in stub.WatchPlans(allocator_pb2.WatchPlansRequest(), timeout=20):
            seen.append(response.plan)
            if response.plan.applied:
                break
        assert peers.applied[0].generation == seen[-1].generation
        assert {plan.refusal for plan in seen[:-1]} <= {"n2 has left"}
        assert peers.applied[0].generation == 3


async def test_our_own_rescale_is_no_event(peers: Peers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address, coalesce_seconds=0.01):
        await wait_until_async(lambda: peers.applied)
        peers.job_manager.put(job_message("a", commanded_nodes=["n1", "n2"]))
        peers.scavenger.tell(left="n2")
        await wait_until_async(lambda: len(peers.applied) == 2)
        assert peers.scales() == [{"a": 2}, {"a": 1}]


async def noted(stub: Any, generation: int) -> None:
    """Wait until a plan has been applied, and the Allocator has noted that."""
    async for response in stub.WatchPlans(allocator_pb2.WatchPlansRequest(), timeout=20):
        if response.plan.applied and response.plan.generation >= generation:
            return


async def test_generations_go_on_after_a_restart(peers: Peers, tmp_path: Path) -> None:
    async with peers.serving() as address:
        async with allocator(tmp_path, address) as stub:
            await noted(stub, 1)
        async with allocator(tmp_path, address) as stub:
            await noted(stub, 2)
        peers.have_jobs(job_message("a", plan_generation=40))
        async with allocator(tmp_path / "lost", address):
            await wait_until_async(lambda: len(peers.applied) == 3)
    assert [plan.generation for plan in peers.applied] == [1, 2, 41]


async def test_how_long_workers_boot_is_known_after_a_restart(peers: Peers, tmp_path: Path) -> None:
    peers.profiler.put(*profiles("a", "b", scale_up_seconds=0.0))
    peers.have_jobs(job_message("a", commanded_nodes=["n1"], confirmed_nodes=["n1"]))
    async with peers.serving() as address:
        async with allocator(tmp_path, address, coalesce_seconds=0.01) as stub:
            await noted(stub, 1)
            for nodes_, confirmed in ((["n1", "n2"], ["n1"]), (["n1", "n2"], ["n1", "n2"])):
                peers.job_manager.put(job_message("a", commanded_nodes=nodes_, confirmed_nodes=confirmed))
            peers.scavenger.tell("n3")
            await noted(stub, 2)
            (measured,) = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan.problem.jobs
            assert measured.boot_seconds > 0
        peers.have_jobs(job_message("b", state=resources_pb2.JOB_STATE_WAITING))
        async with allocator(tmp_path, address) as stub:
            await noted(stub, 3)
            (other,) = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan.problem.jobs
            assert (other.id, other.boot_seconds) == ("b", measured.boot_seconds)


async def test_the_loop_survives_a_restart_of_its_peers(peers: Peers, tmp_path: Path) -> None:
    async with peers.serving() as address, allocator(tmp_path, address):
        await wait_until_async(lambda: peers.applied)
        end_streams_and_change(peers)
        await wait_until_async(lambda: len(peers.applied) == 2)
    assert peers.scales()[1] == {"a": 3}


def end_streams_and_change(peers: Peers) -> None:
    """End the streams as a restart does; the next snapshot differs."""
    peers.scavenger.nodes["n3"] = peers.scavenger.make("n3")
    peers.scavenger.end_streams()


async def test_solving_is_stateless_and_checks_its_input(peers: Peers, tmp_path: Path) -> None:
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
    peers = Peers()
    pools = {"g1": "gpu", "g2": "gpu", "c1": "cpu"}
    peers.scavenger.nodes = {name: resources_pb2.Node(name=name, pool=pool) for name, pool in pools.items()}
    async with peers.serving() as address, allocator(tmp_path, address, span_pools=span_pools):
        await wait_until_async(lambda: peers.applied)
        (assignment,) = peers.applied[0].assignments
        assert set(assignment.nodes) == given


async def test_changes_of_jobs_shorten_what_a_plan_looks_ahead(peers: Peers, tmp_path: Path) -> None:
    peers.have_jobs(job_message("a", commanded_nodes=["n1"]))
    async with (
        peers.serving() as address,
        allocator(tmp_path, address, forward_policy="expected", forward_seconds=1000.0) as stub,
    ):
        await wait_until_async(lambda: peers.applied)
        first = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        assert first.problem.forward_seconds == pytest.approx(1000.0, rel=0.01)
        peers.job_manager.put(job_message("a", commanded_nodes=["n1", "n2"]))
        peers.scavenger.tell("n3")
        await wait_until_async(lambda: len(peers.applied) == 2)
        second = (await stub.GetPlan(allocator_pb2.GetPlanRequest(), timeout=5)).plan
        # One node changed beside ten that are assumed per node which the job has held: between one and two of them.
        assert 1000.0 * 10 / 11 - 1 <= second.problem.forward_seconds <= 1000.0 * 20 / 21 + 1
