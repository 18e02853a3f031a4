"""The event-driven control loop: follow the peers, coalesce, solve, apply, plan again when refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
import grpc.aio
import structlog
from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.allocator import messages
from malletrain.allocator.holds import reserve
from malletrain.allocator.picture import Picture
from malletrain.allocator.plan_store import PlanStore
from malletrain.allocator.planner import Options, Signature, Situation, build_problem, describe_change
from malletrain.allocator.pools import join, split
from malletrain.allocator.problem import Allocation, AllocationProblem
from malletrain.allocator.settings import AllocatorSettings
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.clock import Clock
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub
from malletrain.v1 import (
    allocator_pb2,
    job_manager_pb2,
    job_manager_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
    scavenger_pb2,
    scavenger_pb2_grpc,
)

_STAYS_DEADLINE_SECONDS = 0.5
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 2.0

SolveProblem = Callable[[AllocationProblem], Awaitable[Allocation]]


@dataclass(frozen=True)
class Peers:
    """Stubs of the services that the loop talks to."""

    scavenger: scavenger_pb2_grpc.ScavengerServiceAsyncStub
    job_manager: job_manager_pb2_grpc.JobManagerServiceAsyncStub
    profiler: profiler_pb2_grpc.ProfilerServiceAsyncStub


class ControlLoop:
    """Makes a plan at every event and has JobManager apply it.

    The loop is level-triggered: it compares what is now with what the last applied plan was made for. Leaves need no
    plan to take effect: JobManager has released the node before this loop hears of it.
    """

    def __init__(
        self, peers: Peers, settings: AllocatorSettings, clock: Clock, store: PlanStore, solve: SolveProblem
    ) -> None:
        self._peers = peers
        self._settings = settings
        self._clock = clock
        self._store = store
        self._solve = solve
        self._options = Options(settings.forward, settings.cost_model, settings.objective_metric)
        self._picture = Picture(settings.caution)
        self._planned = Signature()
        self._curves_changed = False
        self._last_plan_at = float("-inf")
        self._news = asyncio.Event()
        self._log = structlog.get_logger(__name__)
        self.plans: Hub[allocator_pb2.Plan] = Hub()
        self.newest: allocator_pb2.Plan | None = store.newest()

    async def run(self) -> None:
        """Follow and decide, until cancelled."""
        peers = self._peers
        async with asyncio.TaskGroup() as group:
            group.create_task(
                follow("nodes", lambda: peers.scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest()), self._see_nodes)
            )
            group.create_task(
                follow("jobs", lambda: peers.job_manager.WatchJobs(job_manager_pb2.WatchJobsRequest()), self._see_jobs)
            )
            group.create_task(
                follow(
                    "profiles",
                    lambda: peers.profiler.WatchProfiles(profiler_pb2.WatchProfilesRequest()),
                    self._see_profiles,
                )
            )
            group.create_task(self._decide())

    async def _see_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        self._picture.see_nodes(message)
        self._news.set()

    async def _see_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        self._picture.see_jobs(message)
        self._news.set()

    async def _see_profiles(self, message: profiler_pb2.WatchProfilesResponse) -> None:
        self._picture.see_profiles(message)
        self._curves_changed = True
        self._news.set()

    async def _decide(self) -> None:
        retry = _FIRST_RETRY_SECONDS
        failed = False
        while True:
            await self._wait(retry if failed else self._idle_seconds())
            await asyncio.sleep(self._settings.coalesce_seconds)
            self._news.clear()
            trigger = self._trigger()
            if not trigger:
                failed = False
                continue
            failed = not await self._plan(trigger)
            retry = min(2 * retry, _LONGEST_RETRY_SECONDS) if failed else _FIRST_RETRY_SECONDS

    async def _wait(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return

    def _idle_seconds(self) -> float | None:
        """How long nothing is due by itself: a job that backs off, a hold that runs out, or curves that changed."""
        waits = []
        now = self._clock.time()
        if (eligible := self._picture.next_eligible(now)) is not None:
            waits.append(eligible - now)
        if (release := self._picture.next_release(now)) is not None:
            waits.append(release - now)
        if self._curves_changed and self._settings.replan_seconds:
            waits.append(self._last_plan_at + self._settings.replan_seconds - self._clock.monotonic())
        return max(0.0, min(waits)) if waits else None

    def _trigger(self) -> str:
        """Why a plan is due now; empty where none is."""
        if not self._picture.complete:
            return ""
        situation = self._picture.situation(self._clock.time())
        change = describe_change(self._planned, Signature.of(situation))
        if change:
            return change
        every = self._settings.replan_seconds
        if self._curves_changed and every and self._clock.monotonic() >= self._last_plan_at + every:
            return "curves changed" if situation.planned_jobs else ""
        return ""

    async def _plan(self, trigger: str) -> bool:
        """Make a plan and have it applied; False when it must be made again."""
        await self._refresh_stays()
        situation = self._picture.situation(self._clock.time())
        problem = build_problem(situation, self._options)
        self._curves_changed = False
        allocation = await self._allocate(problem, situation)
        plan = self._make(trigger, problem, allocation)
        applied = await self._apply(plan)
        if applied:
            self._planned = Signature.of(situation)
            self._last_plan_at = self._clock.monotonic()
        self._store.add(plan)
        self.newest = plan
        self.plans.publish(plan)
        self._log.info(
            "plan",
            generation=plan.generation,
            trigger=trigger,
            applied=plan.applied,
            refusal=plan.refusal,
            solver=allocation.solver,
            solve_seconds=round(allocation.solve_seconds, 6),
            scales={entry.job_id: len(entry.nodes) for entry in plan.allocation.assignments},
        )
        return applied

    async def _allocate(self, problem: AllocationProblem, situation: Situation) -> Allocation:
        """Solve a problem pool by pool, held jobs first."""
        pools = {node.name: node.pool for node in situation.nodes if not self._settings.span_pools}
        answers = []
        for part in split(problem, pools, self._options.forward):
            reserved = reserve(part, situation.holds)
            answers.append(reserved.complete(await self._solve(reserved.rest)))
        return join(problem, answers)

    async def _refresh_stays(self) -> None:
        """Expected stays at the nodes' present ages; without an answer the plan goes by those at their last event."""
        try:
            response = await self._peers.scavenger.ListNodes(
                scavenger_pb2.ListNodesRequest(), timeout=_STAYS_DEADLINE_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh stays", code=error.code().name)
            return
        self._picture.see_stays(response.nodes)

    def _make(self, trigger: str, problem: AllocationProblem, allocation: Allocation) -> allocator_pb2.Plan:
        before = self.newest.generation if self.newest else 0
        created = Timestamp()
        created.FromNanoseconds(int(self._clock.time() * 1e9))
        return allocator_pb2.Plan(
            generation=max(before, self._picture.highest_generation) + 1,
            create_time=created,
            trigger=trigger,
            problem=messages.problem_to_proto(problem),
            allocation=messages.allocation_to_proto(allocation),
        )

    async def _apply(self, plan: allocator_pb2.Plan) -> bool:
        request = job_manager_pb2.ApplyPlanRequest(generation=plan.generation, assignments=plan.allocation.assignments)
        try:
            await self._peers.job_manager.ApplyPlan(request, timeout=DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            plan.refusal = error.details() or error.code().name
            return False
        plan.applied = True
        return True
