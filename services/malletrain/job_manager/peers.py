"""Scavenger and Monitor: what they tell JobManager, and what JobManager tells and asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import grpc.aio
import structlog

from malletrain.common.tasks import lasting
from malletrain.common.trace_context import TraceContext
from malletrain.job_manager import wire
from malletrain.job_manager.launching.supervisor_client import NodeHost
from malletrain.job_manager.machine.fault_attribution import NodeEvidence
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import Notice
from malletrain.job_manager.machine.stimuli import Progressed, Stimulus
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.following import follow
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.tracing.propagation import from_message
from malletrain.v1 import monitor_pb2, scavenger_pb2

_MAX_FAILURES = 16
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

    def __init__(self, settings: Settings, clock: Clock, credential: ServiceCredential) -> None:
        self._peers = Peers(settings, credential)
        self._clock = clock
        self._evidence = NodeEvidence()
        self._log = structlog.get_logger(__name__)

    async def notify(self, job_id: str, notice: Notice, nodes: int) -> None:
        """Tell a job's trainer something in advance, by way of Monitor, and how many nodes the job is about to have."""
        request = monitor_pb2.SendCommandRequest(job_id=job_id, type=_COMMANDS[notice], nodes=nodes)
        try:
            await self._peers.monitor.SendCommand(request, timeout=_NOTICE_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("trainer not notified", job=job_id, notice=notice.value, code=error.code().name)

    async def read_progress(self, job_id: str) -> Progressed | None:
        """Ask Monitor for the progress of a job that has no processes; None if Monitor does not know it or is away.

        The last batches of a job that has just ended may not have been streamed yet.
        """
        request = monitor_pb2.GetProgressRequest(job_ids=[job_id])
        try:
            response = await self._peers.monitor.GetProgress(request, timeout=_PROGRESS_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.warning("last progress not known", job=job_id, code=error.code().name)
            return None
        return next((replace(wire.progress_of(progress), stalled=False) for progress in response.progress), None)

    async def forget(self, job_ids: Collection[str]) -> bool:
        """Have Monitor delete what it stores of jobs. False: it is away, or of a version that can't."""
        request = monitor_pb2.ForgetJobsRequest(job_ids=job_ids)
        try:
            await self._peers.monitor.ForgetJobs(request, timeout=_FORGET_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.info("ended jobs not forgotten", code=error.code().name)
            return False
        return True

    def note_trained(self, job: Job) -> None:
        """Remember the nodes on which a job trains well, if it does: before its processes there change or end."""
        self._evidence.note_success(job, self._clock.time())

    def move_times(self, seconds: float) -> None:
        """The wall clock was set by so many seconds."""
        self._evidence.move_times(seconds)

    async def report_failures(self, job: Job, nodes: Sequence[str], jobs: Iterable[Job]) -> None:
        """Take in that workers have failed; report to the Scavenger a node that is to blame, every failure once.

        What could not be reported is reported with the next failure.

        Args:
            job: Their job, as it was before.
            nodes: The node or GPU of each of them.
            jobs: All jobs that have not ended.
        """
        now, present = self._clock.time(), list(jobs)
        for name in nodes:
            self._evidence.note_failure(job, name, now)
        for name in dict.fromkeys(nodes):
            suspicion = self._evidence.suspicion(name, present, now)
            if suspicion is None:
                continue
            entry = scavenger_pb2.NodeFailure(node=suspicion.node, reason=suspicion.reason, by=suspicion.by)
            entries = [entry] * min(suspicion.failures, _MAX_FAILURES)
            request = scavenger_pb2.ReportNodeFailuresRequest(failures=entries)
            try:
                await self._peers.scavenger.ReportNodeFailures(request, timeout=_NOTICE_DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as error:
                self._log.info("node failures not reported", node=suspicion.node, code=error.code().name)
                self._evidence.forget(suspicion)

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
            update_hosts({node.name: NodeHost(node.agent, node.gpus, node.agent_name) for node in message.joined})
            receive(wire.nodes_stimulus(message, self._clock.time()))
            nodes_left(frozenset(message.left), from_message(message.trace_context))

        async def handle_progress(message: monitor_pb2.WatchProgressResponse) -> None:
            note_progress(map(wire.progress_of, message.progress))

        nodes, progress = scavenger_pb2.WatchNodesRequest(in_pieces=True), monitor_pb2.WatchProgressRequest()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                lasting(follow("nodes", lambda: self._peers.scavenger.WatchNodes(nodes), handle_nodes), "nodes")
            )
            group.create_task(
                lasting(
                    follow("progress", lambda: self._peers.monitor.WatchProgress(progress), handle_progress), "progress"
                )
            )

    async def close(self) -> None:
        """Disconnect."""
        await self._peers.close()
