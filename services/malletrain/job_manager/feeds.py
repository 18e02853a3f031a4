"""What other services tell JobManager, and what it tells Monitor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import grpc.aio
import structlog

from malletrain.job_manager.blame import at_fault
from malletrain.job_manager.engine import Engine
from malletrain.job_manager.launchers.base import Host
from malletrain.job_manager.stimuli import IdleSetSeen, NodesChanged, Progressed, SupervisorSeen
from malletrain.job_manager.world import Notice
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Addresses
from malletrain.runtime.following import follow
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc, scavenger_pb2, scavenger_pb2_grpc

_NOTICE_DEADLINE_SECONDS = 0.5
_COMMANDS = {
    Notice.RESCALE_COMING: monitor_pb2.COMMAND_TYPE_RESCALE_COMING,
    Notice.RELEASE_REQUESTED: monitor_pb2.COMMAND_TYPE_RELEASE_REQUESTED,
}


class Notifier:
    """Tells trainers of changes in advance, as far as Monitor can reach them; nothing waits for it."""

    def __init__(self, address: str) -> None:
        """Connect to Monitor when first used."""
        self._address = address
        self._channel: grpc.aio.Channel | None = None
        self._log = structlog.get_logger(__name__)

    async def __call__(self, job_id: str, notice: Notice) -> None:
        """Pass a notice on; a failure is logged."""
        if self._channel is None:
            self._channel = open_channel(self._address)
        request = monitor_pb2.SendCommandRequest(job_id=job_id, type=_COMMANDS[notice])
        try:
            stub = monitor_pb2_grpc.MonitorServiceStub(self._channel)
            await stub.SendCommand(request, timeout=_NOTICE_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("trainer not told", job=job_id, notice=notice.value, code=error.code().name)

    async def close(self) -> None:
        """Disconnect."""
        if self._channel is not None:
            await self._channel.close()


class FailureReporter:
    """Tells the Scavenger of nodes on which work keeps failing, once of each failure; nothing waits for it."""

    def __init__(self, address: str) -> None:
        """Connect to the Scavenger when first used."""
        self._address = address
        self._channel: grpc.aio.Channel | None = None
        self._told: dict[tuple[str, int, str], int] = {}
        self._log = structlog.get_logger(__name__)

    async def __call__(self, seen: SupervisorSeen, nodes: int) -> None:
        """Report what is new; a failure to do so is logged, and it is reported with the next."""
        failures = dict(seen.failures)
        node = at_fault(failures, nodes)
        if node is None:
            return
        key = (seen.job_id, seen.incarnation, node)
        new = failures[node] - self._told.get(key, 0)
        if new <= 0:
            return
        if self._channel is None:
            self._channel = open_channel(self._address)
        entry = scavenger_pb2.NodeFailure(node=node, reason=f"workers of {seen.job_id} keep failing here only")
        request = scavenger_pb2.ReportNodeFailuresRequest(failures=[entry] * new)
        try:
            stub = scavenger_pb2_grpc.ScavengerServiceStub(self._channel)
            await stub.ReportNodeFailures(request, timeout=_NOTICE_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("failures not reported", node=node, code=error.code().name)
        else:
            self._told[key] = failures[node]

    async def close(self) -> None:
        """Disconnect."""
        if self._channel is not None:
            await self._channel.close()


async def follow_peers(
    addresses: Addresses, engine: Engine, know_hosts: Callable[[Mapping[str, Host]], None], clock: Clock
) -> None:
    """Take in what Scavenger and Monitor tell, until cancelled.

    Args:
        addresses: Where they are.
        engine: Takes it in.
        know_hosts: Told what nodes there are, before they are used.
        clock: Wall clock.
    """
    async with open_channel(addresses.scavenger) as scavenger, open_channel(addresses.monitor) as monitor:
        nodes = scavenger_pb2_grpc.ScavengerServiceStub(scavenger)
        progress = monitor_pb2_grpc.MonitorServiceStub(monitor)

        async def see_nodes(message: scavenger_pb2.WatchNodesResponse) -> None:
            know_hosts({node.name: Host(node.agent, node.gpus) for node in message.joined})
            take_nodes(engine, message, clock.time())

        async def see_progress(message: monitor_pb2.WatchProgressResponse) -> None:
            take_progress(engine, message)

        async with asyncio.TaskGroup() as group:
            group.create_task(follow("nodes", lambda: nodes.WatchNodes(scavenger_pb2.WatchNodesRequest()), see_nodes))
            group.create_task(
                follow("progress", lambda: progress.WatchProgress(monitor_pb2.WatchProgressRequest()), see_progress)
            )


def take_nodes(engine: Engine, message: scavenger_pb2.WatchNodesResponse, now: float) -> None:
    """Take in a message of WatchNodes."""
    joined = frozenset(node.name for node in message.joined)
    if message.snapshot:
        engine.apply(IdleSetSeen(joined))
        return
    happened = message.event_time.ToNanoseconds() / 1e9 if message.HasField("event_time") else now
    engine.apply(NodesChanged(joined, frozenset(message.left), happened))


def take_progress(engine: Engine, message: monitor_pb2.WatchProgressResponse) -> None:
    """Take in a message of WatchProgress; jobs that have ended are of no interest."""
    for progress in message.progress:
        if progress.job_id in engine.world.jobs:
            engine.apply(Progressed(progress.job_id, progress.samples, progress.stalled))
