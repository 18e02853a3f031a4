"""The control loop of the Allocator: follow the other services, make a plan when one is due, have it applied.

What is decided is in `plan_trigger` (when), `planner` (the problem) and `solving` (the solution).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import grpc
import grpc.aio
import structlog

from malletrain.allocator import messages
from malletrain.allocator.boot_time_store import BootTimeStore
from malletrain.allocator.change_gaps import ChangeGaps
from malletrain.allocator.cluster_cache import ClusterCache
from malletrain.allocator.fleet_messages import decision_from_proto, feed_rates
from malletrain.allocator.fleet_planning import FleetPlanning, assignments, with_fleets
from malletrain.allocator.forward_time import ForwardTime
from malletrain.allocator.growth_times import BootTime, GrowthTimes
from malletrain.allocator.idle_recording import IdleRecording
from malletrain.allocator.metrics import AllocatorMetrics, PlanOutcome
from malletrain.allocator.node_stays import NodeStays
from malletrain.allocator.plan_messages import describe, scales_of_members
from malletrain.allocator.plan_spans import PlanSpan, PlanSpans
from malletrain.allocator.plan_store import PlanStore
from malletrain.allocator.plan_trigger import PlanTrigger
from malletrain.allocator.planner import PlanInput, PlanProblem, plan_problem
from malletrain.allocator.problem import Allocation, AllocationProblem, Assignment
from malletrain.allocator.rate_deadlines import RateDeadlines
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.store_queue import StoreQueue
from malletrain.common.trace_context import TraceContext
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.clock import Clock
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub, newest
from malletrain.runtime.messages import timestamp
from malletrain.runtime.tracing.propagation import metadata_of, to_message
from malletrain.v1 import (
    allocator_pb2,
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    monitor_pb2_grpc,
    profiler_pb2,
    profiler_pb2_grpc,
    resources_pb2,
    scavenger_pb2,
    scavenger_pb2_grpc,
)

_STAYS_DEADLINE_SECONDS = 0.5
_MOST_UNSTORED = 1000
"""Plans, and times of growths, that wait while the database can't be written."""
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

_HOLDING_STATES = (
    resources_pb2.JOB_STATE_STARTING,
    resources_pb2.JOB_STATE_RUNNING,
    resources_pb2.JOB_STATE_RESCALING,
    resources_pb2.JOB_STATE_WAITING,
)

SolveProblem = Callable[[AllocationProblem], Awaitable[Allocation]]


@dataclass(frozen=True)
class AllocatorPeers:
    """Stubs of the services that the loop calls."""

    scavenger: scavenger_pb2_grpc.ScavengerServiceAsyncStub
    job_manager: job_manager_pb2_grpc.JobManagerServiceAsyncStub
    profiler: profiler_pb2_grpc.ProfilerServiceAsyncStub
    monitor: monitor_pb2_grpc.MonitorServiceAsyncStub


@dataclass(frozen=True)
class _Solved:
    """A problem with its solution, and what it was made of."""

    present: PlanInput
    plan_input: PlanInput
    planning: FleetPlanning
    problem: PlanProblem
    allocation: Allocation
    curves_seen: int


class ControlLoop:
    """Makes a plan when one is due and has JobManager apply it.

    Nodes that leave need no plan: JobManager has released them before this loop hears of it.
    """

    def __init__(
        self,
        peers: AllocatorPeers,
        settings: AllocatorSettings,
        clock: Clock,
        store: PlanStore,
        boot_times: BootTimeStore,
        solve: SolveProblem,
        metrics: AllocatorMetrics,
        spans: PlanSpans,
        recording: IdleRecording,
    ) -> None:
        self._peers = peers
        self._recording = recording
        self._caution = settings.caution
        self._options = settings.planner_options
        self._clock = clock
        self._unstored = StoreQueue[allocator_pb2.Plan](lambda plans: store.add(*plans), "plans", _MOST_UNSTORED)
        self._unstored_times = StoreQueue[BootTime](boot_times.add, "times of growths", _MOST_UNSTORED)
        self._solve = solve
        self._metrics = metrics
        self._spans = spans
        self._cache = ClusterCache()
        self._stays = NodeStays()
        self._stays_are_listed = False
        self._growths = GrowthTimes(boot_times.all())
        self._changes = ChangeGaps()
        self._trigger = PlanTrigger(settings.coalesce_seconds, settings.replan_seconds, settings.fleet_replan_seconds)
        self._news = asyncio.Event()
        self._moved = False
        self._curves_seen = 0
        self._solving_seconds = 0.0
        self._log = structlog.get_logger(__name__)
        self.plans: Hub[allocator_pb2.Plan] = Hub(merge=newest)
        self.newest: allocator_pb2.Plan | None = store.newest()
        stored = self.newest.fleets if self.newest else ()
        self._decisions = {message.fleet_id: decision_from_proto(message) for message in stored}
        late = {job_id: late for decision in self._decisions.values() for job_id, late in decision.late_rates}
        self._rate_deadlines = RateDeadlines(settings.fleet_measuring_seconds, late)

    def use_forward(self, forward: ForwardTime) -> None:
        """Compute T_fwd like this from the next plan on."""
        self._options = replace(self._options, forward=forward)

    async def run(self) -> None:
        """Follow the other services and make plans, until cancelled."""
        scavenger, job_manager, profiler = self._peers.scavenger, self._peers.job_manager, self._peers.profiler
        nodes, jobs = scavenger_pb2.WatchNodesRequest(), job_manager_pb2.WatchJobsRequest(without_progress=True)
        profiles = profiler_pb2.WatchProfilesRequest()
        async with asyncio.TaskGroup() as group:
            group.create_task(follow("nodes", lambda: scavenger.WatchNodes(nodes), self._on_nodes))
            group.create_task(follow("jobs", lambda: job_manager.WatchJobs(jobs), self._on_jobs))
            group.create_task(follow("profiles", lambda: profiler.WatchProfiles(profiles), self._on_profiles))
            group.create_task(self._decide())
            group.create_task(self._recording.run())
            group.create_task(self._unstored.run())
            group.create_task(self._unstored_times.run())

    async def _on_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        joined = map(messages.node_from_proto, message.joined)
        self._cache.update_nodes(joined, message.left, snapshot=message.snapshot)
        if message.snapshot:
            self._stays_are_listed = False  # it may be a Scavenger of another version than before
        self._spans.note_event(message, self._clock.time())
        self._recording.note(message)
        self._moved = True
        self._news.set()

    async def _on_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        jobs = [messages.job_from_proto(job) for job in message.jobs]
        self._cache.update_jobs(jobs, snapshot=message.snapshot)
        measured = self._growths.see_all(
            jobs, self._clock.monotonic(), snapshot=message.snapshot, pool_of=self._cache.pool_of
        )
        self._unstored_times.put(measured)
        self._changes.see_all(jobs, self._clock.monotonic(), snapshot=message.snapshot)
        self._cache.note_generation(message.plan_generation)
        self._moved = True
        self._news.set()

    async def _on_profiles(self, message: profiler_pb2.WatchProfilesResponse) -> None:
        self._cache.update_profiles(messages.profile_from_proto(entry, self._caution) for entry in message.profiles)
        self._curves_seen += 1
        self._trigger.note_curves()
        self._news.set()

    async def _decide(self) -> None:
        while True:
            await self._wait(self._wait_seconds())
            clock = asyncio.get_running_loop().time
            due = clock() + self._trigger.coalesce_seconds
            # The release that the same event may call for goes first: it needs the processors now.
            await asyncio.sleep(self._trigger.coalesce_seconds / 2)
            ahead = None
            if asked := bool(self._reason()):
                # While others may join the event, rather than after that.
                await self._refresh(None)
                ahead = await self._solve_ahead(due - clock())
            await asyncio.sleep(max(0.0, due - clock()))
            if self._moved:
                ahead = None
            self._news.clear()
            if reason := self._reason():
                with self._spans.plan(reason) as span:
                    if not asked:
                        with span.step("refresh_stays") as context:
                            await self._refresh(context)
                    await self._plan(reason, span, ahead)
            else:
                self._spans.forget_events()

    def _wait_seconds(self) -> float | None:
        due = self._trigger.wait_seconds(self._cache, self._clock.time(), self._clock.monotonic())
        return min(
            (seconds for seconds in (due, self._rate_deadlines.next_seconds()) if seconds is not None), default=None
        )

    def _look_at_rates(self) -> None:
        """See for how long members of fleets have been measured."""
        waiting = self._rate_deadlines.next_seconds() is not None
        if self._cache.complete and (waiting or self._cache.has_fleets):
            present = self._cache.plan_input(self._clock.time())
            self._cache.update_late_rates(self._rate_deadlines.look(present, self._clock.monotonic()))

    def _reason(self) -> str:
        self._look_at_rates()
        return self._trigger.reason(self._cache, self._clock.time(), self._clock.monotonic())

    async def _wait(self, seconds: float | None) -> None:
        try:
            # Not `wait_for`, which loses a cancellation that comes just as there is news.
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _solve_ahead(self, seconds: float) -> _Solved | None:
        """The solution of the present problem, if that is likely to be found within so many seconds.

        It serves the next plan unless nodes or jobs change until then; curves of 20 ms ago will do.
        """
        self._moved = False
        if self._cache.has_fleets or seconds <= self._solving_seconds:
            return None
        return await self._solved()

    async def _solved(self) -> _Solved:
        begin, curves = self._clock.monotonic(), self._curves_seen
        present = self._cache.plan_input(self._clock.time())
        plan_input = replace(
            present,
            growth_seconds=self._growths.seconds(self._cache.pool_of),
            changes=self._changes.observed(self._clock.monotonic()),
        )
        planning = with_fleets(plan_input, self._options.forward, self._decisions)
        problem = plan_problem(planning.plan_input, self._options)
        allocation = problem.allocation([await self._solve(part.rest) for part in problem.parts])
        self._solving_seconds = self._clock.monotonic() - begin
        return _Solved(present, plan_input, planning, problem, allocation, curves)

    async def _plan(self, reason: str, span: PlanSpan, ahead: _Solved | None) -> None:
        """Make a plan, of a solution that was found ahead if there is one, and have it applied."""
        self._trigger.begin()
        with span.step("solve"):
            solved = ahead or await self._solved()
        if solved.curves_seen != self._curves_seen:
            self._trigger.note_curves()
        planning, problem, allocation = solved.planning, solved.problem, solved.allocation
        decisions = planning.decide(allocation)
        span.solved(problem.whole, allocation)
        plan = allocator_pb2.Plan(
            generation=self._cache.next_generation(self.newest.generation if self.newest else 0),
            create_time=timestamp(self._clock.time()),
            trigger=reason,
            trace_context=to_message(span.context),
        )
        with span.step("apply") as context:
            outcome = await self._apply(plan, assignments(allocation, decisions), context)
        # Not before: nodes wait for the answer, and nobody for a message with every node and curve.
        describe(plan, planning.plan_input, problem, allocation, decisions)
        span.answered(plan)
        self._metrics.planned(plan.generation, problem.whole, allocation, outcome)
        if outcome is PlanOutcome.APPLIED:
            self._trigger.applied(solved.present, self._clock.monotonic(), in_part=bool(plan.omissions))
            resting = {
                name: self._decisions[name] for name in solved.plan_input.resting.values() if name in self._decisions
            }
            self._decisions = resting | {decision.fleet_id: decision for decision in decisions}
        else:
            self._trigger.refused()
        self.newest = plan
        self._unstored.put([plan])
        self.plans.publish(plan)
        self._log.info(
            "plan",
            generation=plan.generation,
            trigger=reason,
            applied=plan.applied,
            refusal=plan.refusal,
            omissions=len(plan.omissions),
            solver=allocation.solver,
            solve_seconds=round(allocation.solve_seconds, 6),
            scales={entry.job_id: len(entry.nodes) for entry in plan.allocation.assignments},
            **({"fleets": scales_of_members(decisions)} if decisions else {}),
        )

    def not_stored_yet(self, generation: int) -> allocator_pb2.Plan | None:
        """A plan that waits to be stored; None where there is none of this generation."""
        return next((plan for plan in reversed(self._unstored.waiting) if plan.generation == generation), None)

    async def _refresh(self, context: TraceContext | None) -> None:
        """Ask for what is not told by itself: expected stays, and how far members of fleets are."""
        await asyncio.gather(self._refresh_stays(context), self._refresh_samples(context), self._refresh_feeds(context))

    async def _refresh_samples(self, context: TraceContext | None) -> None:
        """Ask how many samples members of fleets have trained on; without an answer, older figures are used."""
        if not self._cache.has_fleets:
            return
        request = job_manager_pb2.ListJobsRequest(states=_HOLDING_STATES)
        try:
            while True:
                response = await self._peers.job_manager.ListJobs(
                    request, timeout=_STAYS_DEADLINE_SECONDS, metadata=metadata_of(context)
                )
                self._cache.update_samples({job.id: job.samples for job in response.jobs if job.fleet_id})
                request.page_token = response.next_page_token
                if not request.page_token:
                    return
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh samples", code=error.code().name)

    async def _refresh_feeds(self, context: TraceContext | None) -> None:
        """Ask what feeds of fleets can prepare; without an answer, older figures are used."""
        if not (members := self._cache.members):
            return
        request = monitor_pb2.GetProgressRequest(job_ids=members)
        try:
            response = await self._peers.monitor.GetProgress(
                request, timeout=_STAYS_DEADLINE_SECONDS, metadata=metadata_of(context)
            )
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh rates of feeds", code=error.code().name)
            return
        self._cache.update_feeds(feed_rates(response.progress))

    async def _refresh_stays(self, context: TraceContext | None) -> None:
        """Compute the expected stays at the nodes' present ages; without an answer, from what was told before."""
        try:
            if not self._stays_are_listed:
                response = await self._peers.scavenger.GetStays(
                    scavenger_pb2.GetStaysRequest(known=self._stays.token),
                    timeout=_STAYS_DEADLINE_SECONDS,
                    metadata=metadata_of(context),
                )
                self._stays.take(messages.stays_from_proto(response), self._clock.time())
        except grpc.aio.AioRpcError as error:
            # One of the version before: it has the listing only.
            self._stays_are_listed = error.code() is grpc.StatusCode.UNIMPLEMENTED
            self._log.debug("no fresh stays", code=error.code().name)
        if self._stays_are_listed:
            await self._list_stays(context)
        else:
            self._cache.update_stays(self._stays.refreshed(self._cache.nodes, self._clock.time()))

    async def _list_stays(self, context: TraceContext | None) -> None:
        try:
            response = await self._peers.scavenger.ListNodes(
                scavenger_pb2.ListNodesRequest(), timeout=_STAYS_DEADLINE_SECONDS, metadata=metadata_of(context)
            )
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh stays", code=error.code().name)
            return
        self._cache.update_stays(map(messages.node_from_proto, response.nodes))

    async def _apply(
        self, plan: allocator_pb2.Plan, parts: Sequence[Assignment], context: TraceContext | None
    ) -> PlanOutcome:
        request = job_manager_pb2.ApplyPlanRequest(
            generation=plan.generation, assignments=map(messages.assignment_to_proto, parts), partial=True
        )
        try:
            response = await self._peers.job_manager.ApplyPlan(
                request, timeout=DEADLINE_SECONDS, metadata=metadata_of(context)
            )
        except grpc.aio.AioRpcError as error:
            plan.refusal = error.details() or error.code().name
            return PlanOutcome.UNREACHABLE if error.code() in _UNREACHABLE else PlanOutcome.REFUSED
        plan.applied = True
        plan.omissions.extend(entry.reason for entry in response.omissions)
        return PlanOutcome.APPLIED
