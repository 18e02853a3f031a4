"""Scavenger, JobManager and Allocator as they run in production, on real servers in one process, step by step.

Of what they talk to, the batch scheduler, the supervisors of jobs, Profiler and Monitor are stand-ins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.looping import stand_ins
from malletrain.allocator import loop as allocator_loop
from malletrain.allocator import service as allocator_service
from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.machine.machine import AllocatorMachine, PlanPhase
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.service import JobManager
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.model.job_state import JobState
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.process import Service
from malletrain.runtime.server import ServiceHost
from malletrain.scavenger import service as scavenger_service
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import NodeSource
from malletrain.v1 import (
    allocator_pb2,
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    profiler_pb2,
    resources_pb2,
    supervisor_pb2,
)
from tests.support.access import CREDENTIAL, checked, installation
from tests.support.channels import knowing_stand_ins, stand_in, stand_in_credentials
from tests.support.ports import free_port
from tests.support.stand_ins import StandInMonitor, StandInProfiler, serve
from tests.support.waiting import wait_until_async

PATIENCE_S = 120.0
QUIET_S = 0.4
"""Steps begin so long after all that followed from the step before: the services engine is never later than that."""


class GivenNodes(NodeSource):
    """A batch scheduler that says what a test has it say."""

    def __init__(self, names: tuple[str, ...], idle: tuple[str, ...], clock: SystemClock) -> None:
        self._names, self._clock = names, clock
        self._idle = dict.fromkeys(idle, clock.time())
        self._changed = asyncio.Event()

    def order(self) -> tuple[str, ...]:
        return self._names

    def set_idle(self, *names: str) -> None:
        now = self._clock.time()
        self._idle = {name: self._idle.get(name, now) for name in names}
        self._changed.set()

    async def observations(self) -> AsyncIterator[Observation]:
        while True:
            self._changed.clear()
            yield Observation(self._clock.time(), dict(self._idle))
            await self._changed.wait()


class SlowSupervisor(stand_ins.StandIn):
    """Confirms a growth once its new workers have booted and the stall is over, a shrink after its stall.

    Attributes:
        boot_s: How long new workers boot, in seconds.
        up_s: Stall of a growth, in seconds.
        down_s: Stall of a shrink, in seconds.
    """

    boot_s = up_s = down_s = 0.0

    async def SetHosts(self, request: Any, context: Any) -> Any:
        if request.sequence > self._sequence:
            hosts = tuple(host.name for host in request.hosts)
            seconds = self.boot_s + self.up_s if len(hosts) > len(self._hosts) else self.down_s
            self._hosts, self._sequence = hosts, request.sequence
            asyncio.get_running_loop().call_later(seconds, asyncio.ensure_future, self._confirm_if(request.sequence))
        return supervisor_pb2.SetHostsResponse(state=self._state())

    async def _confirm_if(self, sequence: int) -> None:
        if sequence == self._sequence:
            await self._confirm()


class MonitorOfFastNodes(StandInMonitor):
    """A Monitor that calls no node slow."""

    async def ListSlowNodes(self, request: Any, context: Any) -> monitor_pb2.ListSlowNodesResponse:
        return monitor_pb2.ListSlowNodesResponse()


class GatedJobManager(JobManager):
    """JobManager, whose plans may be held back on their way to it.

    Attributes:
        gate: Set while plans pass.
        waiting: Generations of plans that wait before the gate.
        arrivals: When plans arrived, in seconds since the epoch, by generation.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting: list[int] = []
        self.arrivals: dict[int, float] = {}

    async def ApplyPlan(self, request: job_manager_pb2.ApplyPlanRequest, context: Any) -> Any:
        self.waiting.append(request.generation)
        await self.gate.wait()
        self.waiting.remove(request.generation)
        self.arrivals[request.generation] = SystemClock().time()
        return await super().ApplyPlan(request, context)


@dataclass
class LiveServices:
    """What a test does with them, and sees of them."""

    source: GivenNodes
    manager: GatedJobManager
    allocator: allocator_service.AllocatorService
    stub: Any

    @property
    def state(self) -> ManagerState:
        return self.manager.engine.state

    @property
    def machine(self) -> AllocatorMachine:
        return self.allocator._loop._machine.state

    async def submit(self, *specs: resources_pb2.JobSpec) -> None:
        await self.stub.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=specs), timeout=PATIENCE_S)

    async def settle(self, least_plans: int) -> None:
        """Wait until at least so many plans have been made and nothing has happened for a while after the last."""
        clock, since = asyncio.get_running_loop(), [0.0]

        def is_quiet() -> bool:
            if self.machine.generation < least_plans or not self._is_still:
                since[0] = clock.time()
            return clock.time() - since[0] >= QUIET_S

        since[0] = clock.time()
        await wait_until_async(is_quiet, PATIENCE_S, f"the end of what follows, with at least {least_plans} plans")

    @property
    def _is_still(self) -> bool:
        jobs, known = self.state.jobs.values(), {job.plannable.id: job for job in self.machine.cluster.jobs}
        are_still = all(
            job.wanted == job.commanded
            and set(job.commanded) == set(job.confirmed)
            and not job.releases
            and job.state in (JobState.WAITING, JobState.RUNNING)
            and job.id in known
            and known[job.id].state is job.state
            and known[job.id].confirmed_nodes == frozenset(job.confirmed)
            for job in jobs
        )
        return are_still and self.machine.phase is PlanPhase.WAITING and not self.machine._has_news

    def plans(self) -> list[allocator_pb2.Plan]:
        """All plans, oldest first."""
        return list(reversed(list(self.allocator._store.newest_first())))

    def idle_rows(self) -> list[IdleRow]:
        """What the Allocator has recorded of the idle set."""
        return self.allocator._idle_store.rows()

    @property
    def now(self) -> float:
        """Seconds since the epoch, as they have it."""
        return SystemClock().time()

    async def store(self) -> None:
        """Have what is not stored yet stored: the newest plan, and what is recorded of the idle set."""
        await self.allocator._loop.flush()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _served(service: Service, address: str) -> AsyncIterator[None]:
    host = ServiceHost(address, checked(), credentials=stand_in_credentials())
    service.register(host)
    await host.start()
    running = asyncio.create_task(service.run())
    try:
        yield
    finally:
        await _end(running)
        await service.close()
        await host.stop(0.2)


@asynccontextmanager
async def live_services(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[str, ...],
    idle: tuple[str, ...],
    profiles: Sequence[profiler_pb2.Profile],
    allocator: AllocatorSettings,
    job_manager: Mapping[str, Any],
) -> AsyncIterator[LiveServices]:
    """Serve until the block is left.

    Args:
        folder: State folder of all of them.
        nodes: All nodes there may be.
        idle: Those that are idle from the beginning.
        profiles: What the Profiler says of jobs.
        allocator: Settings of the Allocator.
        job_manager: Settings of JobManager that are not the default.
    """
    # On a busy machine nodes are not to be placed by older stays than those of the services engine.
    monkeypatch.setattr(allocator_loop, "_ANSWER_SECONDS", PATIENCE_S)
    clock = SystemClock()
    source = GivenNodes(nodes, idle, clock)
    monkeypatch.setattr(scavenger_service, "build_source", lambda *_: source)
    monkeypatch.setattr(stand_ins, "StandIn", SlowSupervisor)
    python = stand_ins.make_python(folder)
    supervisors = asyncio.create_task(stand_ins.serve(folder))
    await wait_until_async((folder / stand_ins.STARTS).exists, PATIENCE_S)
    at = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, supervisors)
        others = await stack.enter_async_context(serve(MonitorOfFastNodes(), StandInProfiler(*profiles)))
        addresses = Addresses(scavenger=at[0], job_manager=at[1], allocator=at[2], monitor=others, profiler=others)
        settings = knowing_stand_ins(Settings(state_dir=folder, addresses=addresses, validate_state=True))
        # A static source has no debounce.
        section = ScavengerSettings(source="static", nodes=list(nodes))
        scavenger = scavenger_service.create(settings, section, clock, CREDENTIAL)
        await stack.enter_async_context(_served(scavenger, at[0]))
        manager = GatedJobManager(
            settings,
            JobManagerSettings(trainer_python=str(python), standby_memory_mib=0, **job_manager),
            clock,
            installation(settings),
        )
        await stack.enter_async_context(_served(manager, at[1]))
        made = allocator_service.create(settings, allocator, clock, CREDENTIAL)
        assert isinstance(made, allocator_service.AllocatorService)
        await stack.enter_async_context(_served(made, at[2]))
        channel = await stack.enter_async_context(open_channel(stand_in("job_manager", at[1]), CREDENTIAL))
        live = LiveServices(source, manager, made, job_manager_pb2_grpc.JobManagerServiceStub(channel))
        await wait_until_async(lambda: live.state.idle is not None and live.machine.cluster.complete, PATIENCE_S)
        yield live
