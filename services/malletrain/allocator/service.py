"""The Allocator's gRPC service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio

from malletrain.allocator.auto_tuning.replay_process import ReplayProcess
from malletrain.allocator.auto_tuning.store import TuningStore
from malletrain.allocator.auto_tuning.tuner import AutoTuner
from malletrain.allocator.auto_tuning.wire import tuner_options, tuning_to_proto
from malletrain.allocator.explanation.explain import explain_plan
from malletrain.allocator.history.boot_time_store import BootTimeStore
from malletrain.allocator.history.history_pages import believed_page, idle_page, utilization_page
from malletrain.allocator.history.idle_store import IdleRecording, IdleStore
from malletrain.allocator.history.plan_store import METADATA, PlanStore
from malletrain.allocator.loop import ControlLoop
from malletrain.allocator.machine.recording import RecordedAllocator
from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem, Formulation
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.allocator.telemetry.plan_spans import PlanSpans
from malletrain.allocator.utilization.definition import last_hour, utilization_of
from malletrain.allocator.utilization.recorder import UtilizationRecorder
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.allocator.wire import messages
from malletrain.common.tasks import ending, lasting
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError, NotFoundError
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.process import Service
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    allocator_pb2,
    allocator_pb2_grpc,
)

_MAX_SOLVE_SECONDS = 3600.0
_RUNS_TOLD = 50
_MIN_STIMULI = 300
"""That the recorder keeps: fewer than of other services, since those of ten thousand nodes take much memory."""


class AllocatorService(allocator_pb2_grpc.AllocatorServiceServicer):
    """Serves plans of the control loop, and solves problems on request."""

    def __init__(
        self,
        settings: Settings,
        section: AllocatorSettings,
        clock: Clock,
        credential: ServiceCredential,
        replay_command: Sequence[str],
    ) -> None:
        self._section = section
        self._clock = clock
        self._process = SolverProcess()
        # There is one process with HiGHS: solves wait here, not in its pipe.
        self._solving = asyncio.Lock()
        # Explanations wait for each other, so that many of them keep one core busy at most.
        self._explaining = asyncio.Lock()
        engine = open_database(settings.database("allocator"), METADATA)
        self._store = PlanStore(engine, section.plans_kept, section.plans_kept_mib << 20)
        self._idle_store = IdleStore(engine, section.idle_rows_kept)
        recording = IdleRecording(self._idle_store, clock)
        # Pages of the past wait for each other, so that many readers keep one core busy at most.
        self._paging = asyncio.Lock()
        self._peers = Peers(settings, credential)
        self._utilization_store = UtilizationStore(engine)
        self._utilization = UtilizationRecorder(lambda: self._loop.cluster, self._peers, self._utilization_store, clock)
        self._metrics = AllocatorMetrics(lambda: utilization_of(last_hour(self._utilization.newest, clock.time())))
        self._spans = PlanSpans()
        self._loop = ControlLoop(
            self._peers,
            section,
            clock,
            self._store,
            BootTimeStore(engine, clock),
            self._solve_as_configured,
            self._metrics,
            self._spans,
            recording,
            FlightRecorder(
                settings.state_dir / "debug", RecordedAllocator(), settings.validate_state, min_stimuli=_MIN_STIMULI
            ),
        )
        self._replays = ReplayProcess(
            replay_command,
            settings.state_dir / "auto_tuning",
            section.auto_tune_cpu_share * section.auto_tune_seconds,
            section.auto_tune_memory_mib,
        )
        self._tuning = TuningStore(engine)
        self._tuner = AutoTuner(
            tuner_options(section), self._tuning, clock, self._replays.run, self._loop.use_forward, self._metrics
        )

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server."""
        name = allocator_pb2.DESCRIPTOR.services_by_name["AllocatorService"].full_name
        host.add(name, allocator_pb2_grpc.add_AllocatorServiceServicer_to_server, self)
        self._metrics.register(host.metrics)
        self._spans.register(host.tracer)

    async def run(self) -> None:
        """The control loop, and auto-tuning beside it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting(self._loop.run(), "control loop"))
            group.create_task(lasting(self._utilization.run(), "utilization"))
            group.create_task(ending(self._tuner.run(), "tuner"))

    async def close(self) -> None:
        """End the streams, store what waits, and end the solver's process and the channels."""
        self._loop.plans.close()
        await self._loop.flush()
        await self._utilization.flush()
        self._process.close()
        await self._peers.close()

    async def _solve_as_configured(self, problem: AllocationProblem) -> Allocation:
        return await self._solve(problem, self._section.formulation, self._section.time_limit_seconds)

    async def _solve(self, problem: AllocationProblem, formulation: Formulation, seconds: float) -> Allocation:
        async with self._solving:
            allocation = await asyncio.to_thread(solve, problem, formulation, seconds, self._process)
        self._metrics.note_solution(allocation)
        return allocation

    async def Solve(
        self, request: allocator_pb2.SolveRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.SolveResponse:
        """Solve a problem."""
        del context
        seconds = request.time_limit_seconds or self._section.time_limit_seconds
        if not 0 < seconds <= _MAX_SOLVE_SECONDS:
            raise InvalidInputError(
                "time_limit_seconds", f"above 0 and at most {_MAX_SOLVE_SECONDS:g}", request.time_limit_seconds
            )
        problem = messages.problem_from_proto(request.problem)
        allocation = await self._solve(problem, messages.formulation_from_proto(request.formulation), seconds)
        return allocator_pb2.SolveResponse(allocation=messages.allocation_to_proto(allocation))

    async def GetPlan(
        self, request: allocator_pb2.GetPlanRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.GetPlanResponse:
        """The newest plan, or an earlier one."""
        del context
        if request.generation < 0:
            raise InvalidInputError("generation", "at least 0", request.generation)
        plan = await self._plan_of(request.generation) if request.generation else self._loop.newest
        return allocator_pb2.GetPlanResponse(plan=plan)

    async def ExplainPlan(
        self, request: allocator_pb2.ExplainPlanRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.ExplainPlanResponse:
        """Why the jobs of a plan have their scales and nodes."""
        del context
        if request.generation < 0:
            raise InvalidInputError("generation", "at least 0", request.generation)
        if request.job_id and request.node:
            raise InvalidInputError("node", "nothing beside job_id", request.node)
        async with self._explaining:
            plan = await self._plan_of(request.generation)
            explanation = await asyncio.to_thread(explain_plan, plan, request.job_id, request.node)
        return allocator_pb2.ExplainPlanResponse(explanation=explanation)

    async def _plan_of(self, generation: int) -> allocator_pb2.Plan:
        newest = self._loop.newest
        if newest is None:
            raise NotFoundError("there is no plan yet: it takes a node or a job")
        if generation in (0, newest.generation):
            return newest
        plan = self._loop.not_stored_yet(generation) or await asyncio.to_thread(self._store.get, generation)
        if plan is None:
            raise NotFoundError(f"plan {generation} is not kept; the newest is {newest.generation}")
        return plan

    async def WatchPlans(
        self, request: allocator_pb2.WatchPlansRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[allocator_pb2.WatchPlansResponse]:
        """The newest plan, then every further one."""
        del request, context
        with self._loop.plans.subscribe() as subscription:
            if self._loop.newest is not None:
                yield allocator_pb2.WatchPlansResponse(plan=self._loop.newest)
            async for plan in subscription:
                yield allocator_pb2.WatchPlansResponse(plan=plan)

    async def ListIdleChanges(
        self, request: allocator_pb2.ListIdleChangesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.ListIdleChangesResponse:
        """What is recorded of the idle set."""
        del context
        async with self._paging:
            return await asyncio.to_thread(idle_page, self._idle_store, request)

    async def ListBelievedJobs(
        self, request: allocator_pb2.ListBelievedJobsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.ListBelievedJobsResponse:
        """What plans believed of their jobs."""
        del context
        async with self._paging:
            return await asyncio.to_thread(believed_page, self._store, request)

    async def ListUtilization(
        self, request: allocator_pb2.ListUtilizationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.ListUtilizationResponse:
        """U and its bound by minute."""
        del context
        async with self._paging:
            return await asyncio.to_thread(utilization_page, self._utilization_store, request)

    async def GetTuning(
        self, request: allocator_pb2.GetTuningRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> allocator_pb2.GetTuningResponse:
        """What auto-tuning has done and why."""
        del request, context
        runs = await asyncio.to_thread(self._tuning.newest, _RUNS_TOLD)
        return tuning_to_proto(self._section.auto_tune, self._tuner.state, runs, self._section.auto_tune_seconds)


def create(
    settings: Settings,
    section: AllocatorSettings,
    clock: Clock,
    credential: ServiceCredential,
    replay_command: Sequence[str] = (),
) -> Service:
    """Make the service within a running event loop.

    Args:
        settings: What the services share.
        section: The Allocator's own settings.
        credential: What it shows to the other services.
        replay_command: The program that replays the past for auto-tuning.
    """
    return AllocatorService(settings, section, clock, credential, replay_command)
