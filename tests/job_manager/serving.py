"""A JobManager that serves, with stand-ins of Scavenger and Monitor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from malletrain.job_manager.service import JobManager
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    job_manager_pb2,
    job_manager_pb2_grpc,
    resources_pb2,
)
from tests.support.access import CREDENTIAL, checked, installation
from tests.support.builders import spec_message
from tests.support.channels import knowing_stand_ins, plain_channel
from tests.support.stand_ins import StandInMonitor, StandInScavenger, serve
from tests.support.waiting import wait_until_async


@dataclass
class Caller:
    """Calls of a JobManager, in few words."""

    stub: Any

    async def submit(self, *command: str, **changes: Any) -> str:
        request = job_manager_pb2.SubmitJobsRequest(specs=[spec_message(*command, **changes)])
        return str((await self.stub.SubmitJobs(request)).jobs[0].id)

    async def plan(self, generation: int, **assignments: str) -> Any:
        pairs = [{"job_id": f"j{int(name[1:]):06d}", "nodes": nodes.split()} for name, nodes in assignments.items()]
        request = job_manager_pb2.ApplyPlanRequest(generation=generation)
        for pair in pairs:
            request.assignments.add(**pair)
        return await self.stub.ApplyPlan(request)

    async def job(self, job_id: str) -> Any:
        return (await self.stub.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id))).job

    async def events(self, job_id: str) -> list[Any]:
        return list((await self.stub.ListJobEvents(job_manager_pb2.ListJobEventsRequest(job_id=job_id))).events)

    async def until(
        self, job_id: str, state: str, timeout: float = 20.0, holds: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        """The job once it is in a state, and a condition holds of it."""
        wanted = resources_pb2.JobState.Value(f"JOB_STATE_{state}")
        found: list[Any] = []

        async def look() -> None:
            while not found or found[-1].state != wanted or not holds(found[-1]):
                found.append(await self.job(job_id))
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(look(), timeout)
        except TimeoutError:
            reasons = [event.reason for event in await self.events(job_id)]
            raise AssertionError(f"{job_id} is not {state} after {timeout} s: {reasons}") from None
        return found[-1]

    async def until_released(self, job_id: str, timeout: float = 20.0) -> list[Any]:
        """Events of its nodes that no process of it is left on, once there is one."""
        async with asyncio.timeout(timeout):
            while True:
                events = await self.events(job_id)
                if found := [event for event in events if event.reason_code == resources_pb2.JOB_REASON_NODE_RELEASED]:
                    return found
                await asyncio.sleep(0.02)


@dataclass
class ManagerHarness(Caller):
    """All that a test talks to."""

    scavenger: StandInScavenger
    monitor: StandInMonitor
    state_dir: Path
    manager: JobManager
    address: str

    async def wait_for_nodes(self) -> None:
        engine = self.manager.engine
        await wait_until_async(lambda: engine.state.idle is not None, what="the first idle set")


@contextlib.asynccontextmanager
async def serve_peers(nodes: str) -> AsyncIterator[tuple[StandInScavenger, StandInMonitor, Addresses]]:
    """A Scavenger and a Monitor that serve."""
    scavenger, monitor = StandInScavenger(nodes.split()), StandInMonitor()
    async with serve(scavenger, monitor) as address:
        yield scavenger, monitor, Addresses(scavenger=address, monitor=address)


@contextlib.asynccontextmanager
async def serve_manager(
    state_dir: Path, python: Path, nodes: str = "n1 n2 n3 n4", **section: Any
) -> AsyncIterator[ManagerHarness]:
    """Serve until the block is left; then end in good order, which stops the jobs."""
    async with serve_peers(nodes) as (scavenger, monitor, addresses):
        settings = knowing_stand_ins(Settings(state_dir=state_dir, addresses=addresses))
        # A standby process would fork the supervisor itself, not its stand-in.
        section_settings = JobManagerSettings(trainer_python=str(python), **{"standby_memory_mib": 0, **section})
        manager = JobManager(settings, section_settings, SystemClock(), installation(settings))
        host = ServiceHost("127.0.0.1:0", checked())
        manager.register(host)
        port = await host.start()
        background = asyncio.create_task(manager.run())
        async with plain_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
            stub = job_manager_pb2_grpc.JobManagerServiceStub(channel)
            harness = ManagerHarness(stub, scavenger, monitor, state_dir, manager, f"127.0.0.1:{port}")
            await harness.wait_for_nodes()
            try:
                yield harness
            finally:
                background.cancel()
                await asyncio.gather(background, return_exceptions=True)
                await manager.close()
                await host.stop(0.2)


def processes_of(state_dir: Path) -> dict[int, Mapping[str, str]]:
    """Live processes of the jobs below a folder: environment by pid."""
    found = find_processes(lambda environment: environment.get(JOB_DIR, "").startswith(str(state_dir)))
    return {process.id.pid: process.environment for process in found}
