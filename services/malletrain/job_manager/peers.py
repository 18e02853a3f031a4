"""Scavenger and Monitor: what they tell JobManager, and what JobManager tells and asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import grpc.aio
import structlog

from malletrain.common.gpus import node_of
from malletrain.common.trace_context import TraceContext
from malletrain.job_manager.fault_attribution import at_fault, failures_by_node
from malletrain.job_manager.launching.supervisor_client import NodeHost
from malletrain.job_manager.state import Notice
from malletrain.job_manager.stimuli import IdleSetSeen, NodesChanged, Progressed, Stimulus, SupervisorSeen
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.channel import open_channel
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.following import follow
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.tracing.propagation import from_message
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc, scavenger_pb2, scavenger_pb2_grpc

_MOST_FAILURES = 16
"""In one report; a node is quarantined after fewer."""
_NOTICE_DEADLINE_SECONDS = 0.5
_PROGRESS_DEADLINE_SECONDS = 1.0
_FORGET_DEADLINE_SECONDS = 30.0
_COMMANDS = {
    Notice.RESCALE_COMING: monitor_pb2.COMMAND_TYPE_RESCALE_COMING,
    Notice.RELEASE_REQUESTED: monitor_pb2.COMMAND_TYPE_RELEASE_REQUESTED,
}


class ManagerPeers:
    """Calls to Scavenger and Monitor. A call that fails is logged; no job waits long for it."""

    def __init__(self, settings: Settings, clock: Clock, credential: Credential) -> None:
        """Connect when first used.

        Args:
            settings: Where the services are.
            clock: Wall clock.
            credential: What is shown to them.
        """
        self._credential = credential
        self._settings = settings
        self._clock = clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._reported: dict[tuple[str, int, str], int] = {}
        self._log = structlog.get_logger(__name__)

    async def notify(self, job_id: str, notice: Notice) -> None:
        """Tell a job's trainer something in advance, by way of Monitor."""
        request = monitor_pb2.SendCommandRequest(job_id=job_id, type=_COMMANDS[notice])
        try:
            await self._monitor().SendCommand(request, timeout=_NOTICE_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("trainer not told", job=job_id, notice=notice.value, code=error.code().name)

    async def read_progress(self, job_id: str) -> Progressed | None:
        """Ask Monitor for the progress of a job that has no processes; None if Monitor does not know it or is away.

        The last batches of a job that has just ended may not have been streamed yet.
        """
        request = monitor_pb2.GetProgressRequest(job_ids=[job_id])
        try:
            response = await self._monitor().GetProgress(request, timeout=_PROGRESS_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.warning("last progress not known", job=job_id, code=error.code().name)
            return None
        return next((Progressed(job_id, found.samples, stalled=False) for found in response.progress), None)

    async def forget(self, job_ids: Collection[str]) -> bool:
        """Have Monitor delete what it stores of jobs. False: it is away, or of a version that can't."""
        request = monitor_pb2.ForgetJobsRequest(job_ids=job_ids)
        try:
            await self._monitor().ForgetJobs(request, timeout=_FORGET_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("ended jobs not forgotten", code=error.code().name)
            return False
        return True

    async def report_failures(self, seen: SupervisorSeen, nodes: Collection[str], held: Collection[str]) -> None:
        """Report to the Scavenger a node on which a job's workers keep failing; every failure once.

        What could not be reported is reported with the next failure.

        Args:
            seen: A supervisor's state.
            nodes: Nodes or GPUs that its job uses.
            held: Those that it holds: its supervisor can accuse no others.
        """
        failures = failures_by_node(seen.failures)
        node = at_fault(failures, len({node_of(name) for name in nodes}))
        if node is None or node not in {node_of(name) for name in held}:
            return
        key = (seen.job_id, seen.incarnation, node)
        new = failures[node] - self._reported.get(key, 0)
        if new <= 0:
            return
        entry = scavenger_pb2.NodeFailure(node=node, reason=f"workers of {seen.job_id} keep failing here only")
        request = scavenger_pb2.ReportNodeFailuresRequest(failures=[entry] * min(new, _MOST_FAILURES))
        try:
            await self._scavenger().ReportNodeFailures(request, timeout=_NOTICE_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("failures not reported", node=node, code=error.code().name)
        else:
            self._reported[key] = failures[node]

    async def follow(
        self,
        receive: Callable[[Stimulus], object],
        note_progress: Callable[[Iterable[Progressed]], None],
        update_hosts: Callable[[Mapping[str, NodeHost]], None],
        nodes_left: Callable[[frozenset[str], TraceContext | None], None],
    ) -> None:
        """Follow the nodes and the progress of jobs, until cancelled.

        Args:
            receive: Called with each change of the nodes.
            note_progress: Called with the progress of jobs.
            update_hosts: Called with what is known of nodes, before they are used.
            nodes_left: Called with nodes that have left, and the span of their event, after `receive`.
        """

        async def handle_nodes(message: scavenger_pb2.WatchNodesResponse) -> None:
            update_hosts({node.name: NodeHost(node.agent, node.gpus) for node in message.joined})
            receive(_nodes_stimulus(message, self._clock.time()))
            nodes_left(frozenset(message.left), from_message(message.trace_context))

        async def handle_progress(message: monitor_pb2.WatchProgressResponse) -> None:
            note_progress(Progressed(entry.job_id, entry.samples, entry.stalled) for entry in message.progress)

        nodes, progress = scavenger_pb2.WatchNodesRequest(), monitor_pb2.WatchProgressRequest()
        async with asyncio.TaskGroup() as group:
            group.create_task(follow("nodes", lambda: self._scavenger().WatchNodes(nodes), handle_nodes))
            group.create_task(follow("progress", lambda: self._monitor().WatchProgress(progress), handle_progress))

    async def close(self) -> None:
        """Disconnect."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _monitor(self) -> monitor_pb2_grpc.MonitorServiceAsyncStub:
        return monitor_pb2_grpc.MonitorServiceStub(self._channel("monitor"))

    def _scavenger(self) -> scavenger_pb2_grpc.ScavengerServiceAsyncStub:
        return scavenger_pb2_grpc.ScavengerServiceStub(self._channel("scavenger"))

    def _channel(self, service: str) -> grpc.aio.Channel:
        if service not in self._channels:
            self._channels[service] = open_channel(self._settings.peer(service), self._credential)
        return self._channels[service]


def _nodes_stimulus(message: scavenger_pb2.WatchNodesResponse, now: float) -> IdleSetSeen | NodesChanged:
    joined = frozenset(node.name for node in message.joined)
    if message.snapshot:
        return IdleSetSeen(joined)
    event_time = unix_seconds(message.event_time) if message.HasField("event_time") else now
    return NodesChanged(joined, frozenset(message.left), event_time)
