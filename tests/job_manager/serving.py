"""A JobManager that serves, with a fake Scavenger and a fake Monitor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from malletrain.job_manager.service import JobManager
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.hub import Hub
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import (
    job_manager_pb2,
    job_manager_pb2_grpc,
    monitor_pb2,
    resources_pb2,
    scavenger_pb2,
)
from tests.support.access import CREDENTIAL, checked, installation
from tests.support.waiting import wait_until_async

SCAVENGER = "malletrain.v1.ScavengerService"
MONITOR = "malletrain.v1.MonitorService"


def _serve(server: grpc.aio.Server, service: str, **handlers: grpc.RpcMethodHandler[Any, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _node(name: str) -> resources_pb2.Node:
    """Nodes that are called g.. have two GPUs."""
    return resources_pb2.Node(name=name, gpus=2 if name.startswith("g") else 0)


class FakeScavenger:
    def __init__(self, nodes: set[str]) -> None:
        self.nodes = set(nodes)
        self.events: Hub[scavenger_pb2.WatchNodesResponse] = Hub()

    def register(self, _: object, server: grpc.aio.Server) -> None:
        handler = grpc.unary_stream_rpc_method_handler(
            self.watch_nodes,
            request_deserializer=scavenger_pb2.WatchNodesRequest.FromString,
            response_serializer=scavenger_pb2.WatchNodesResponse.SerializeToString,
        )
        _serve(server, SCAVENGER, WatchNodes=handler)

    async def watch_nodes(self, _request: object, _context: object) -> AsyncIterator[scavenger_pb2.WatchNodesResponse]:
        with self.events.subscribe() as events:
            joined = [_node(name) for name in sorted(self.nodes)]
            yield scavenger_pb2.WatchNodesResponse(snapshot=True, joined=joined)
            async for event in events:
                yield event

    def tell(self, joined: str = "", left: str = "") -> None:
        self.nodes = (self.nodes - set(left.split())) | set(joined.split())
        event = scavenger_pb2.WatchNodesResponse(joined=[_node(name) for name in joined.split()], left=left.split())
        event.event_time.GetCurrentTime()
        self.events.publish(event)


class FakeMonitor:
    def __init__(self) -> None:
        self.news: Hub[monitor_pb2.WatchProgressResponse] = Hub()
        self.commands: list[tuple[str, int]] = []
        self.samples: dict[str, int] = {}
        self.away = False

    def register(self, _: object, server: grpc.aio.Server) -> None:
        getting = grpc.unary_unary_rpc_method_handler(
            self.get_progress,
            request_deserializer=monitor_pb2.GetProgressRequest.FromString,
            response_serializer=monitor_pb2.GetProgressResponse.SerializeToString,
        )
        watching = grpc.unary_stream_rpc_method_handler(
            self.watch_progress,
            request_deserializer=monitor_pb2.WatchProgressRequest.FromString,
            response_serializer=monitor_pb2.WatchProgressResponse.SerializeToString,
        )
        sending = grpc.unary_unary_rpc_method_handler(
            self.send_command,
            request_deserializer=monitor_pb2.SendCommandRequest.FromString,
            response_serializer=monitor_pb2.SendCommandResponse.SerializeToString,
        )
        _serve(server, MONITOR, WatchProgress=watching, SendCommand=sending, GetProgress=getting)

    async def watch_progress(
        self, _request: object, _context: object
    ) -> AsyncIterator[monitor_pb2.WatchProgressResponse]:
        with self.news.subscribe() as news:
            yield monitor_pb2.WatchProgressResponse(progress=self._progress())
            async for item in news:
                yield item

    async def get_progress(
        self, request: monitor_pb2.GetProgressRequest, context: Any
    ) -> monitor_pb2.GetProgressResponse:
        if self.away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        found = [progress for progress in self._progress() if progress.job_id in request.job_ids]
        return monitor_pb2.GetProgressResponse(progress=found)

    def _progress(self) -> list[monitor_pb2.Progress]:
        return [monitor_pb2.Progress(job_id=job_id, samples=count) for job_id, count in self.samples.items()]

    async def send_command(
        self, request: monitor_pb2.SendCommandRequest, _context: object
    ) -> monitor_pb2.SendCommandResponse:
        self.commands.append((request.job_id, request.type))
        return monitor_pb2.SendCommandResponse(reporters=1)

    def tell(self, job_id: str, samples: int, stalled: bool = False) -> None:
        self.samples[job_id] = samples
        progress = monitor_pb2.Progress(job_id=job_id, samples=samples, stalled=stalled)
        self.news.publish(monitor_pb2.WatchProgressResponse(progress=[progress]))


@dataclass
class Caller:
    """Calls of a JobManager, in few words."""

    stub: Any

    async def submit(self, *command: str, **changes: Any) -> str:
        request = job_manager_pb2.SubmitJobsRequest(specs=[make_spec(*command, **changes)])
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

    async def until(self, job_id: str, state: str, timeout: float = 20.0) -> Any:
        wanted = resources_pb2.JobState.Value(f"JOB_STATE_{state}")
        found: list[Any] = []

        async def look() -> None:
            while not found or found[-1].state != wanted:
                found.append(await self.job(job_id))
                await asyncio.sleep(0.02)

        try:
            await asyncio.wait_for(look(), timeout)
        except TimeoutError:
            reasons = [event.reason for event in await self.events(job_id)]
            raise AssertionError(f"{job_id} is not {state} after {timeout} s: {reasons}") from None
        return found[-1]


@dataclass
class ManagerHarness(Caller):
    """All that a test talks to."""

    scavenger: FakeScavenger
    monitor: FakeMonitor
    state_dir: Path
    manager: JobManager
    address: str

    async def wait_for_nodes(self) -> None:
        engine = self.manager._engine
        await wait_until_async(lambda: engine.state.idle is not None, what="the first idle set")


def make_spec(*command: str, **changes: Any) -> resources_pb2.JobSpec:
    values: dict[str, Any] = {
        "name": "job",
        "command": command or ("sleep", "60"),
        "working_directory": "/",
        "min_nodes": 1,
        "max_nodes": 4,
    }
    return resources_pb2.JobSpec(**{**values, **changes})


@contextlib.asynccontextmanager
async def serve_peers(nodes: str) -> AsyncIterator[tuple[FakeScavenger, FakeMonitor, Addresses]]:
    """A Scavenger and a Monitor that serve."""
    scavenger, monitor = FakeScavenger(set(nodes.split())), FakeMonitor()
    host = ServiceHost("127.0.0.1:0", checked())
    host.add(SCAVENGER, scavenger.register, scavenger)
    host.add(MONITOR, monitor.register, monitor)
    port = await host.start()
    try:
        yield scavenger, monitor, Addresses(scavenger=f"127.0.0.1:{port}", monitor=f"127.0.0.1:{port}")
    finally:
        scavenger.events.close()
        monitor.news.close()
        await host.stop(0.2)


@contextlib.asynccontextmanager
async def serve_manager(
    state_dir: Path, python: Path, nodes: str = "n1 n2 n3 n4", **section: Any
) -> AsyncIterator[ManagerHarness]:
    """Serve until the block is left; then end in good order, which stops the jobs."""
    async with serve_peers(nodes) as (scavenger, monitor, addresses):
        settings = Settings(state_dir=state_dir, addresses=addresses)
        # A standby process would fork the supervisor itself, not its stand-in.
        section_settings = JobManagerSettings(trainer_python=str(python), **{"standby_memory_mib": 0, **section})
        manager = JobManager(settings, section_settings, SystemClock(), installation(settings))
        host = ServiceHost("127.0.0.1:0", checked())
        manager.register(host)
        port = await host.start()
        background = asyncio.create_task(manager.run())
        async with open_channel(f"127.0.0.1:{port}", CREDENTIAL) as channel:
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
