"""The agent of a node: serves supervisors, reports to the Scavenger, and leaves when the node is wanted back."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from malletrain.agent.relay import MonitorRelay
from malletrain.agent.session import SupervisorSession
from malletrain.agent.slurm_preemption import PreemptionQueryError, was_preempted
from malletrain.common.agent_protocol import LONGEST_LINE_BYTES, AgentProtocolError, Message
from malletrain.common.agent_streams import AgentStream, accept_stream, open_stream

_POLL_SECONDS = 0.02
_HEARTBEAT_SECONDS = 5.0
_RETRY_SECONDS = 0.3


@dataclass(frozen=True)
class AgentConfig:
    """How an agent works.

    Attributes:
        node: Name of the node.
        head: Host and port on which the Scavenger listens for agents.
        listen: Address to serve supervisors on.
        placeholder: Identifier of the batch job that holds the node; empty if there is none.
        grace_seconds: Time that workers have to end by themselves once the node is wanted back.
        orphan_seconds: How long the agent stays without work if the Scavenger can't be reached.
        stay_seconds: When the agent leaves in any case, counted from its start: before the time limit of its
            placeholder, at which some schedulers only send SIGKILL.
        in_slurm: Whether the placeholder is a job of Slurm.
    """

    node: str
    head: tuple[str, int]
    listen: str
    placeholder: str
    grace_seconds: float
    orphan_seconds: float
    stay_seconds: float = math.inf
    in_slurm: bool = False


class Agent:
    """The agent of one node."""

    def __init__(self, config: AgentConfig, token: bytes) -> None:
        """Nothing happens before `run`.

        Args:
            config: How to work.
            token: The installation's secret.
        """
        self._config = config
        self._token = token
        self._sessions: set[SupervisorSession] = set()
        self._relay = MonitorRelay(token, self._log)
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0
        self._scavenger: AgentStream | None = None
        self._disconnected_at = time.monotonic()
        self._leave_by: float | None = None
        self._stay_until = time.monotonic() + config.stay_seconds
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Work until the node is wanted back, or until there has been neither work nor Scavenger for too long."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_to_leave)
        server = await asyncio.start_server(self._accept, self._config.listen, 0, limit=LONGEST_LINE_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        self._log(f"node {self._config.node} is served on {self._config.listen}:{self._port}")
        tasks = [loop.create_task(self._follow_scavenger()), loop.create_task(self._poll())]
        if self._config.in_slurm:
            tasks.append(loop.create_task(self._leave_if_preempted()))
        await self._left.wait()
        if self._scavenger is not None:
            self._scavenger.send({"event": "gone"})
            await self._scavenger.drain()
        unfinished = [*tasks, *self._connections]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        await self._relay.close()
        server.close()

    def _begin_to_leave(self) -> None:
        if self._leave_by is not None:
            return
        self._log(f"node {self._config.node} is wanted back")
        self._leave_by = time.monotonic() + self._config.grace_seconds
        if self._scavenger is not None:
            self._scavenger.send({"event": "leaving"})
        for session in self._sessions:
            session.report_leaving()

    async def _leave_if_preempted(self) -> None:
        try:
            if await was_preempted(self._config.placeholder):
                self._begin_to_leave()
        except PreemptionQueryError as error:
            self._log(f"whether the node is wanted back is not known: {error}")

    # -- supervisors -----------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one supervisor. When its connection is lost, kill its workers."""
        try:
            stream = await accept_stream(reader, writer, self._token)
        except (AgentProtocolError, OSError, TimeoutError, ValueError) as error:
            self._log(f"refused a connection: {error}")
            writer.close()
            return
        session = SupervisorSession(self._config.node, self._config.head[0], stream.send, self._relay.address_for)
        self._sessions.add(session)
        if self._leave_by is not None:
            session.report_leaving()
        try:
            while (message := await stream.read()) is not None:
                session.handle(message)
        except AgentProtocolError as error:
            self._log(f"{stream.role}: {error}")
        finally:
            session.kill()
            while len(session):
                session.poll()
                await asyncio.sleep(_POLL_SECONDS)
            session.kill()
            self._sessions.discard(session)
            stream.close()

    async def _poll(self) -> None:
        while True:
            for session in list(self._sessions):
                session.poll()
            self._leave_if_due(time.monotonic())
            await asyncio.sleep(_POLL_SECONDS)

    def _leave_if_due(self, now: float) -> None:
        if now >= self._stay_until:
            self._begin_to_leave()
        busy = any(len(session) for session in self._sessions)
        if self._leave_by is not None:
            if now >= self._leave_by:
                for session in self._sessions:
                    session.kill()
            if not busy:
                for session in self._sessions:
                    session.kill()  # processes outside the workers' process groups
                self._left.set()
        elif not busy and self._scavenger is None and now - self._disconnected_at >= self._config.orphan_seconds:
            self._log("the Scavenger can't be reached, and there is no work")
            self._left.set()

    # -- the Scavenger ---------------------------------------------------------------------------------------------

    async def _follow_scavenger(self) -> None:
        while True:
            try:
                stream = await open_stream(*self._config.head, self._token, "agent")
            except (AgentProtocolError, OSError, TimeoutError, ValueError):
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._scavenger = stream
            try:
                await self._report_to(stream)
            except AgentProtocolError as error:
                self._log(f"Scavenger: {error}")
            finally:
                self._scavenger = None
                self._disconnected_at = time.monotonic()
                stream.close()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _report_to(self, scavenger: AgentStream) -> None:
        scavenger.send(self._introduction())
        if self._leave_by is not None:
            scavenger.send({"event": "leaving"})
        heartbeats = asyncio.create_task(self._send_heartbeats(scavenger))
        try:
            while (message := await scavenger.read()) is not None:
                if message.get("op") == "leave":
                    self._begin_to_leave()
        finally:
            heartbeats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heartbeats

    async def _send_heartbeats(self, scavenger: AgentStream) -> None:
        while True:
            scavenger.send({"event": "alive", "workers": sum(len(session) for session in self._sessions)})
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    def _introduction(self) -> Message:
        return {
            "event": "here",
            "node": self._config.node,
            "port": self._port,
            "placeholder": self._config.placeholder,
        }

    def _log(self, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(f"{now} malletrain.agent: {text}", file=sys.stderr, flush=True)
