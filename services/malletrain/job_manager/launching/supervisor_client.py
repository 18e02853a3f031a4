"""Calls to a supervisor's service over its Unix socket."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import structlog

from malletrain.common.accounts import Account
from malletrain.common.gpus import node_of
from malletrain.common.version import VERSION
from malletrain.job_manager.launching.folder import clean_text, open_socket
from malletrain.job_manager.machine.stimuli import SupervisorSeen
from malletrain.job_manager.token_bucket import TokenBucket
from malletrain.runtime.channel import DEADLINE_SECONDS, open_socket_channel
from malletrain.runtime.tracing.propagation import present_context, to_message
from malletrain.v1 import supervisor_pb2, supervisor_pb2_grpc

T = TypeVar("T")
_CALL_ERRORS = (grpc.aio.AioRpcError, grpc.aio.UsageError)
"""The second one where the connection is closed, as it is once the supervisor has ended."""
_ENDING = (supervisor_pb2.SUPERVISOR_PHASE_STOPPING, supervisor_pb2.SUPERVISOR_PHASE_ENDED)
_MAX_STATE_BYTES = 1 << 20
_MAX_UNKNOWN_NODES = 1000
_MAX_VERSION_LENGTH = 64
_MAX_MESSAGE_LENGTH = 1000
_STATES_PER_SECOND, _STATES_AT_ONCE = 100.0, 500.0
"""Each is applied and stored. A supervisor sends some at a rescale, and one a second at most otherwise."""

TakeReports = Callable[[str, Iterable[supervisor_pb2.CommandReport]], None]
"""Takes a job's identifier, and what its supervisor reports of commands."""


def ignore_reports(job_id: str, reports: Iterable[supervisor_pb2.CommandReport]) -> None:
    """Take no reports."""
    del job_id, reports


@dataclass(frozen=True)
class NodeHost:
    """What a supervisor must know of a node.

    Attributes:
        agent: HOST:PORT on which its agent serves; empty if the node is this machine.
        gpus: Number of its GPUs.
        agent_name: DNS name that the agent's certificate must have; empty: that of its role.
    """

    agent: str = ""
    gpus: int = 0
    agent_name: str = ""


def host_of(hosts: Mapping[str, NodeHost], name: str) -> NodeHost:
    """What is known of a node, or of the node of a GPU.

    Args:
        hosts: What is known, by node.
        name: Of a node, or of a GPU.
    """
    return hosts.get(node_of(name), NodeHost())


class SupervisorClient:
    """The connection to one supervisor. A failed call shows in its result; JobManager's effects are repeated anyway.

    Attributes:
        incarnation: Which of the job's supervisors.
        ended: Whether it has said that its workers have ended.
        version: Version of MalleTrain that it runs; empty before it has said so, and for 0.1.0 and earlier.
    """

    def __init__(
        self,
        job_id: str,
        incarnation: int,
        socket: Path,
        hosts: Mapping[str, NodeHost],
        account: Account | None = None,
        take_reports: TakeReports = ignore_reports,
    ) -> None:
        """
        Args:
            job_id: The job.
            incarnation: Which of its supervisors.
            socket: Path of its Unix socket.
            hosts: What is known of nodes, by name; may change.
            account: As whom it runs; None: as we do.
            take_reports: Called with what it reports of commands.

        Raises:
            OSError: there is no such socket, or it is not the account's.
        """
        self._hosts = hosts
        self._take_reports = take_reports
        self._descriptor = None if account is None else open_socket(socket, account)
        path = socket if self._descriptor is None else Path(f"/proc/self/fd/{self._descriptor}")
        self.incarnation = incarnation
        self.ended = False
        self.version = ""
        self._job_id = job_id
        # The socket's folder keeps others away.
        self._channel = open_socket_channel(path, _MAX_STATE_BYTES)
        self._stub = supervisor_pb2_grpc.SupervisorServiceStub(self._channel)
        self._log = structlog.get_logger(__name__).bind(job=job_id, incarnation=incarnation)

    async def watch(self) -> AsyncIterator[SupervisorSeen]:
        """Stream a supervisor's state, whenever it changes, until the stream breaks."""
        clock = asyncio.get_running_loop().time
        bucket = TokenBucket.full(_STATES_PER_SECOND, _STATES_AT_ONCE, clock())
        try:
            async for response in _until_closed(self._stub.WatchState(supervisor_pb2.WatchStateRequest())):
                seen = self._parse_state(response)
                if seen is None:
                    return
                yield seen
                # A supervisor may be in the hands of its job's owner.
                bucket = bucket.at(clock())
                if pause := bucket.wait_seconds():
                    await asyncio.sleep(pause)
                    bucket = bucket.at(clock())
                bucket = bucket.without_tokens() or bucket
        except _CALL_ERRORS as error:
            self._log.debug("stream of states lost", code=_code_of(error))

    async def set_hosts(self, sequence: int, nodes: tuple[str, ...], slots: int) -> SupervisorSeen | None:
        """Command nodes; returns its state, or None if it can't be reached."""
        known = [(node, host_of(self._hosts, node)) for node in nodes]
        hosts = [
            supervisor_pb2.Host(name=node, slots=slots, agent=host.agent, agent_name=host.agent_name)
            for node, host in known
        ]
        request = supervisor_pb2.SetHostsRequest(
            sequence=sequence, hosts=hosts, trace_context=to_message(present_context())
        )
        try:
            response = await _answer(self._stub.SetHosts(request, timeout=DEADLINE_SECONDS))
        except _CALL_ERRORS as error:
            self._log_failed_call("SetHosts", error)
            return None
        return self._parse_state(response)

    async def release(self, nodes: tuple[str, ...], grace_seconds: float, deadline_seconds: float) -> bool:
        """Have its processes on some nodes ended; returns whether it answered in time."""
        request = supervisor_pb2.ReleaseHostsRequest(
            hosts=nodes, grace_seconds=grace_seconds, trace_context=to_message(present_context())
        )
        try:
            await _answer(self._stub.ReleaseHosts(request, timeout=deadline_seconds))
        except _CALL_ERRORS as error:
            self._log_failed_call("ReleaseHosts", error)
            return False
        return True

    async def stop(
        self, grace_seconds: float, deadline_seconds: float, keep_seconds: float = 0.0, sequence: int = 0
    ) -> bool:
        """Have its workers ended.

        Args:
            grace_seconds: How long they may take.
            deadline_seconds: How long to wait for the answer.
            keep_seconds: How long it shall stay itself, and wait for nodes; 0: it ends.
            sequence: Number of the newest command about nodes.

        Returns:
            Whether it stays. It does not where it runs a version that can't, or has not answered in time.
        """
        request = supervisor_pb2.StopRequest(
            grace_seconds=grace_seconds,
            trace_context=to_message(present_context()),
            keep_seconds=keep_seconds,
            sequence=sequence if keep_seconds > 0 else 0,
        )
        try:
            response = await _answer(self._stub.Stop(request, timeout=deadline_seconds))
        except _CALL_ERRORS as error:
            self._log_failed_call("Stop", error)
            return False
        return keep_seconds > 0 and response is not None and response.state.phase not in _ENDING

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _log_failed_call(self, method: str, error: Exception) -> None:
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        self._log.warning("supervisor call failed", method=method, code=_code_of(error), details=details)

    def _parse_state(
        self, response: supervisor_pb2.WatchStateResponse | supervisor_pb2.SetHostsResponse | None
    ) -> SupervisorSeen | None:
        """What a supervisor says; None if it makes no sense: it may be in the hands of its job's owner.

        Args:
            response: Its response; None is gRPC's word for bytes that are no message.
        """
        if response is None:
            return None
        state = response.state
        named = {node_of(name) for name in (*state.confirmed_hosts, *(worker.host for worker in state.workers))}
        failed = {node_of(entry.host) for entry in state.failures}
        if len(named) + len(failed) > _MAX_UNKNOWN_NODES + 2 * len(self._hosts):
            self._log.warning("supervisor names more nodes than there are", nodes=len(named))
            return None
        self._take_reports(self._job_id, state.command_reports)
        self._note_version(state.version)
        self.ended = state.phase == supervisor_pb2.SUPERVISOR_PHASE_ENDED
        return SupervisorSeen(
            job_id=self._job_id,
            incarnation=self.incarnation,
            commanded_sequence=state.commanded_sequence,
            confirmed_sequence=state.confirmed_sequence,
            confirmed=frozenset(state.confirmed_hosts),
            occupied=frozenset(worker.host for worker in state.workers),
            failures=tuple((entry.host, entry.failures) for entry in state.failures),
            kept=state.phase == supervisor_pb2.SUPERVISOR_PHASE_KEPT,
            idle_seconds=state.idle_seconds if math.isfinite(state.idle_seconds) else 0.0,
            deadlocked=state.deadlocked,
            most_nodes=max(0, state.usable_hosts),
            message=clean_text(state.message[:_MAX_MESSAGE_LENGTH]),
        )

    def _note_version(self, version: str) -> None:
        version = clean_text(version[:_MAX_VERSION_LENGTH])
        if version != self.version:
            self._log.info("version of the supervisor", version=version, own_version=VERSION)
            self.version = version


async def _answer(call: Awaitable[T]) -> T:
    """The answer to a call.

    Raises:
        grpc.aio.UsageError: the connection was closed meanwhile. gRPC cancels the call then, and it looks as if
            somebody had cancelled this task.
    """
    try:
        return await call
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        raise grpc.aio.UsageError("the connection was closed") from None


async def _until_closed(stream: AsyncIterable[T]) -> AsyncIterator[T]:
    """A stream, which fails as `_answer` does when the connection is closed."""
    messages = aiter(stream)
    while True:
        try:
            message = await _answer(anext(messages))
        except StopAsyncIteration:
            return
        yield message


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _code_of(error: Exception) -> str:
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else "CLOSED"


class SupervisorClients:
    """One connection per supervisor."""

    def __init__(self, hosts: Mapping[str, NodeHost], take_reports: TakeReports = ignore_reports) -> None:
        self._hosts = hosts
        self._take_reports = take_reports
        self._by_job: dict[str, SupervisorClient] = {}
        self._old: list[SupervisorClient] = []

    def get(self, job_id: str, incarnation: int, socket: Path, account: Account | None) -> SupervisorClient:
        """The connection to a job's supervisor.

        Raises:
            OSError: its socket can't be used.
        """
        known = self._by_job.get(job_id)
        if known is not None and known.incarnation == incarnation:
            return known
        client = SupervisorClient(job_id, incarnation, socket, self._hosts, account, self._take_reports)
        if known is not None:
            self._old.append(known)
        self._by_job[job_id] = client
        return client

    def version_of(self, job_id: str) -> str:
        """Version of MalleTrain that a job's supervisor runs; empty where none is known."""
        known = self._by_job.get(job_id)
        return "" if known is None else known.version

    async def drop(self, job_id: str) -> None:
        """Disconnect from a job's supervisor."""
        known = self._by_job.pop(job_id, None)
        if known is not None:
            await known.close()

    async def close(self) -> None:
        """Disconnect from all."""
        for client in (*self._old, *self._by_job.values()):
            await client.close()
        self._old.clear()
        self._by_job.clear()
