"""The control loop of the Allocator: tells the machine what the other services report, and does what it wants done.

What is decided is in `machine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import grpc
import grpc.aio
import structlog

from malletrain.allocator.explanation.plan_parts import describe, scales_of_members
from malletrain.allocator.history.boot_time_store import BootTimeStore
from malletrain.allocator.history.idle_store import IdleRecording
from malletrain.allocator.history.plan_store import PlanStore
from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.machine.growth_times import BootTime
from malletrain.allocator.machine.machine import AllocatorMachine, Effects, Remembered
from malletrain.allocator.machine.node_stays import StayReport
from malletrain.allocator.machine.stimuli import (
    ApplyPlan,
    AskPeers,
    BeginPlan,
    Due,
    FinishPlan,
    ForgetEvents,
    ForwardTimeChosen,
    JobsReported,
    NodesReported,
    PeersAnswered,
    Plan,
    PlanAnswered,
    PlanOutcome,
    ProfilesReported,
    Solve,
    Solved,
    Stimulus,
    StoreGrowths,
)
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import PlannableNode
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.allocator.telemetry.plan_spans import PlanSpan, PlanSpans
from malletrain.allocator.wire import messages
from malletrain.allocator.wire.messages import decision_from_proto, feed_rates
from malletrain.common.tasks import lasting
from malletrain.common.trace_context import TraceContext
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.clock import Clock
from malletrain.runtime.following import follow
from malletrain.runtime.hub import Hub, newest
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.machine_loop import MachineLoop, MachineStep, calls_sent
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.kernel.write_behind import WriteBehind
from malletrain.runtime.messages import timestamp
from malletrain.runtime.paging import all_pages_async
from malletrain.runtime.tracing.propagation import metadata_of, to_message
from malletrain.v1 import (
    allocator_pb2,
    job_manager_pb2,
    monitor_pb2,
    profiler_pb2,
    resources_pb2,
    scavenger_pb2,
)

_ANSWER_SECONDS = 0.5
"""Deadline of what peers are asked: a plan does not wait longer for them."""
_MAX_UNSTORED = 1000
"""Plans, and times of growths, that wait while the database can't be written."""
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

_HOLDING_STATES = (
    resources_pb2.JOB_STATE_STARTING,
    resources_pb2.JOB_STATE_RUNNING,
    resources_pb2.JOB_STATE_RESCALING,
    resources_pb2.JOB_STATE_WAITING,
)

Plans = tuple[allocator_pb2.Plan, ...]
Growths = tuple[BootTime, ...]
ItemT = TypeVar("ItemT")
SolveProblem = Callable[[AllocationProblem], Awaitable[Allocation]]


class ControlLoop:
    """Drives the machine. All of it runs on one event loop, so that no two stimuli are handled at the same time.

    Nodes that leave do not wait for a plan: JobManager is told by the Scavenger itself, and releases them at once.
    """

    def __init__(
        self,
        peers: Peers,
        settings: AllocatorSettings,
        clock: Clock,
        store: PlanStore,
        boot_times: BootTimeStore,
        solve: SolveProblem,
        metrics: AllocatorMetrics,
        spans: PlanSpans,
        recording: IdleRecording,
        recorder: FlightRecorder[AllocatorMachine, Stimulus, Effects],
    ) -> None:
        self._peers = peers
        self._recording = recording
        self._caution = settings.caution
        self._clock = clock
        self._plans_to_store = WriteBehind[Plans](lambda plans: store.add(*plans), _newest_of, "plans")
        self._growths_to_store = WriteBehind[Growths](boot_times.add, _newest_of, "times of growths")
        self._solve = solve
        self._metrics = metrics
        self._spans = spans
        self._span: PlanSpan | None = None
        self._span_ends = ExitStack()
        self._message: allocator_pb2.Plan | None = None
        self._stays_are_listed = False
        self._known_faults: Mapping[str, str] = {}
        self._log = structlog.get_logger(__name__)
        self.plans: Hub[allocator_pb2.Plan] = Hub(merge=newest)
        self.newest: allocator_pb2.Plan | None = store.newest()
        machine = AllocatorMachine(settings.machine_options, _read_remembered(self.newest, boot_times.all()))
        self._machine = MachineLoop[AllocatorMachine, Stimulus, Effects](machine, recorder, clock, self._perform)

    @property
    def cluster(self) -> ClusterCache:
        """What is known of nodes, jobs and curves; to be read only."""
        return self._machine.state.cluster

    def use_forward(self, forward: ForwardTime) -> None:
        """Compute T_fwd like this from the next plan on."""
        self._machine.apply(ForwardTimeChosen(forward))

    def not_stored_yet(self, generation: int) -> allocator_pb2.Plan | None:
        """A plan that waits to be stored; None where there is none of this generation."""
        plans = (plan for batch in self._plans_to_store.waiting for plan in batch)
        return next((plan for plan in plans if plan.generation == generation), None)

    async def run(self) -> None:
        """Follow the other services and make plans, until cancelled."""
        scavenger, job_manager, profiler = self._peers.scavenger, self._peers.job_manager, self._peers.profiler
        nodes, jobs = scavenger_pb2.WatchNodesRequest(in_pieces=True), job_manager_pb2.WatchJobsRequest()
        jobs.without_progress = jobs.in_pieces = True
        profiles = profiler_pb2.WatchProfilesRequest()
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting(follow("nodes", lambda: scavenger.WatchNodes(nodes), self._on_nodes), "nodes"))
            group.create_task(lasting(follow("jobs", lambda: job_manager.WatchJobs(jobs), self._on_jobs), "jobs"))
            group.create_task(
                lasting(follow("profiles", lambda: profiler.WatchProfiles(profiles), self._on_profiles), "profiles")
            )
            group.create_task(lasting(self._make_plans(), "plans"))
            group.create_task(lasting(self._recording.run(), "recording"))
            group.create_task(lasting(self._plans_to_store.run(), "plans to store"))
            group.create_task(lasting(self._growths_to_store.run(), "growths to store"))

    async def flush(self) -> None:
        """Try once more to store what waits for the database. To be called after `run` was cancelled."""
        for writer in (self._recording, self._plans_to_store, self._growths_to_store):
            await writer.flush()

    async def _on_nodes(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        if message.snapshot:
            self._stays_are_listed = False  # it may be a Scavenger of another version than before
        joined = tuple(map(messages.node_from_proto, message.joined))
        self._spans.note_event(message, self._clock.time())
        self._recording.record(message)
        self._machine.apply(NodesReported(joined, tuple(message.left), message.snapshot))

    async def _on_jobs(self, message: job_manager_pb2.WatchJobsResponse) -> None:
        jobs = tuple(map(messages.job_from_proto, message.jobs))
        self._machine.apply(JobsReported(jobs, message.snapshot, message.plan_generation))

    async def _on_profiles(self, message: profiler_pb2.WatchProfilesResponse) -> None:
        profiles = (messages.profile_from_proto(entry, self._caution) for entry in message.profiles)
        self._machine.apply(ProfilesReported(tuple(profiles)))

    def _perform(self, step: MachineStep[AllocatorMachine, Stimulus, Effects]) -> None:
        """Do at once what needs no answer."""
        for effect in step.result:
            match effect:
                case StoreGrowths():
                    self._growths_to_store.add(effect.measured)
                case ForgetEvents():
                    self._spans.forget_events()
                case BeginPlan():
                    self._span = self._span_ends.enter_context(self._spans.plan(effect.reason))
                case FinishPlan():
                    self._finish(effect)
                case AskPeers() | Solve() | ApplyPlan():
                    pass  # for `_answer`

    async def _make_plans(self) -> None:
        """Whenever something is due, tell the machine, and answer its questions."""
        with self._span_ends:
            await self._machine.follow_time(Due(), lambda machine: machine.due_at, self._answer)

    async def _answer(self, effects: Effects) -> Stimulus | None:
        """The answer to the question among effects; a machine asks for one thing at a time."""
        match next((effect for effect in effects if isinstance(effect, AskPeers | Solve | ApplyPlan)), None):
            case AskPeers() as question:
                with self._step("refresh_stays") as context:
                    return await self._ask_peers(question, context)
            case Solve() as question:
                with self._step("solve"):
                    return Solved(tuple([await self._solve(problem) for problem in question.problems]))
            case ApplyPlan() as question:
                with self._step("apply") as context:
                    return await self._apply_plan(question, context)
            case None:
                return None

    @contextmanager
    def _step(self, name: str) -> Iterator[TraceContext | None]:
        """A part of the present plan's span; what is done before a plan is due belongs to none."""
        if self._span is None:
            yield None
            return
        with self._span.step(name) as context:
            yield context

    async def _apply_plan(self, question: ApplyPlan, context: TraceContext | None) -> PlanAnswered:
        plan = question.plan
        if self._span is not None:
            self._span.note_solution(plan.problem.whole, plan.allocation)
        parts = map(messages.assignment_to_proto, question.parts)
        request = job_manager_pb2.ApplyPlanRequest(generation=plan.generation, assignments=parts, partial=True)
        applying = self._peers.job_manager.ApplyPlan(request, timeout=DEADLINE_SECONDS, metadata=metadata_of(context))
        await calls_sent()
        # A plan's long message is made while JobManager applies it: nodes wait for the call, and for the next plan.
        self._message = self._describe(plan)
        try:
            response = await applying
        except grpc.aio.AioRpcError as error:
            outcome = PlanOutcome.UNREACHABLE if error.code() in _UNREACHABLE else PlanOutcome.REFUSED
            return PlanAnswered(outcome, error.details() or error.code().name)
        omissions = tuple(entry.reason for entry in response.omissions)
        jobs = tuple(map(messages.job_from_proto, response.jobs))
        return PlanAnswered(PlanOutcome.APPLIED, "", omissions, bool(response.rescaled_job_ids), jobs)

    def _describe(self, plan: Plan) -> allocator_pb2.Plan:
        """A plan as a message, without what has come of it."""
        message = allocator_pb2.Plan(
            generation=plan.generation,
            create_time=timestamp(plan.unix_seconds),
            trigger=plan.reason,
            trace_context=to_message(self._span.context if self._span else None),
            left_out=plan.planning.plan_input.faults,
        )
        describe(message, plan.planning.plan_input, plan.problem, plan.allocation, plan.decisions)
        return message

    def _finish(self, effect: FinishPlan) -> None:
        """Store and publish a plan."""
        plan, answer, span = effect.plan, effect.answer, self._span
        message, self._message = self._message, None
        assert message is not None, "made when JobManager was asked"
        message.applied, message.refusal = answer.outcome is PlanOutcome.APPLIED, answer.refusal
        message.omissions.extend(answer.omissions)
        if span is not None:
            span.note_outcome(message)
        self._span = None
        self._span_ends.close()
        self._warn_of(plan.planning.plan_input.faults)
        self._metrics.note_plan(plan.generation, plan.problem.whole, plan.allocation, answer.outcome)
        self.newest = message
        self._plans_to_store.add((message,))
        self.plans.publish(message)
        self._log.info(
            "plan made",
            generation=plan.generation,
            trigger=plan.reason,
            applied=message.applied,
            refusal=answer.refusal,
            omissions=len(answer.omissions),
            solver=plan.allocation.solver,
            solve_seconds=round(plan.allocation.solve_seconds, 6),
            scales=_changed_scales(plan),
            **({"fleets": scales_of_members(plan.decisions)} if plan.decisions else {}),
        )

    def _warn_of(self, faults: Mapping[str, str]) -> None:
        """Say once of each job that it is left out."""
        for job_id, fault in faults.items():
            if self._known_faults.get(job_id) != fault:
                self._log.warning("job left out of plans, its figures are wrong", job=job_id, fault=fault)
        self._known_faults = faults

    async def _ask_peers(self, question: AskPeers, context: TraceContext | None) -> PeersAnswered:
        (stays, nodes), samples, rates = await asyncio.gather(
            self._ask_stays(question.known_stays, context),
            self._ask_samples(frozenset(question.members + question.deadlines), context),
            self._ask_feed_rates(question.members, context),
        )
        return PeersAnswered(stays, tuple(nodes), samples, rates)

    async def _ask_samples(self, jobs: Set[str], context: TraceContext | None) -> dict[str, int]:
        """How many samples members of fleets and jobs with a deadline have trained on."""
        samples: dict[str, int] = {}
        if not jobs:
            return samples
        list_jobs = self._peers.job_manager.ListJobs
        request, metadata = job_manager_pb2.ListJobsRequest(states=_HOLDING_STATES), metadata_of(context)
        try:
            async for page in all_pages_async(list_jobs, request, timeout=_ANSWER_SECONDS, metadata=metadata):
                samples.update((job.id, job.samples) for job in page.jobs if job.id in jobs)
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh samples", code=error.code().name)
        return samples

    async def _ask_feed_rates(self, members: Sequence[str], context: TraceContext | None) -> dict[str, float]:
        """How many samples/s the feeds of members can prepare on a node."""
        if not members:
            return {}
        try:
            response = await self._peers.monitor.GetProgress(
                monitor_pb2.GetProgressRequest(job_ids=members), timeout=_ANSWER_SECONDS, metadata=metadata_of(context)
            )
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh rates of feeds", code=error.code().name)
            return {}
        return dict(feed_rates(response.progress))

    async def _ask_stays(
        self, known: str, context: TraceContext | None
    ) -> tuple[StayReport | None, Iterable[PlannableNode]]:
        """What has changed of expected stays; of a Scavenger of the version before, all nodes with theirs."""
        scavenger, metadata = self._peers.scavenger, metadata_of(context)
        try:
            if not self._stays_are_listed:
                changes = await scavenger.GetStays(
                    scavenger_pb2.GetStaysRequest(known=known), timeout=_ANSWER_SECONDS, metadata=metadata
                )
                return messages.stays_from_proto(changes), ()
        except grpc.aio.AioRpcError as error:
            self._stays_are_listed = error.code() is grpc.StatusCode.UNIMPLEMENTED
            if not self._stays_are_listed:
                self._log.debug("no fresh stays", code=error.code().name)
                return None, ()
        try:
            listed = await scavenger.ListNodes(
                scavenger_pb2.ListNodesRequest(), timeout=_ANSWER_SECONDS, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            self._log.debug("no fresh stays", code=error.code().name)
            return None, ()
        return None, map(messages.node_from_proto, listed.nodes)


def _read_remembered(newest_plan: allocator_pb2.Plan | None, growths: Iterable[BootTime]) -> Remembered:
    """What the database says of the time before this process."""
    if newest_plan is None:
        return Remembered(growths=tuple(growths))
    decisions = {message.fleet_id: decision_from_proto(message) for message in newest_plan.fleets}
    return Remembered(newest_plan.generation, decisions, tuple(growths))


def _changed_scales(plan: Plan) -> dict[str, int]:
    """The number of nodes of each job that a plan gives another one, for the log."""
    pairs = zip(plan.problem.whole.jobs, plan.allocation.assignments, strict=True)
    return {job.id: len(entry.nodes) for job, entry in pairs if len(entry.nodes) != len(job.current_nodes)}


def _newest_of(earlier: tuple[ItemT, ...], later: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    """Both; of too many the oldest are dropped."""
    return (*earlier, *later)[-_MAX_UNSTORED:]
