"""Where node agents report: which agents there are, and on which nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from malletrain.common.agent_protocol import LONGEST_LINE_BYTES, AgentProtocolError, Message
from malletrain.common.agent_streams import AgentStream, accept_stream
from malletrain.scavenger.metrics import AGENT_LEFT, ReclaimTimer, ignore_time

_LOST_SECONDS = 2.0
"""An agent whose connection breaks reconnects within a third of a second. One that does not has died."""


@dataclass(frozen=True)
class RegisteredAgent:
    """An agent that has reported.

    Attributes:
        node: Its node.
        address: HOST:PORT on which it serves supervisors.
        placeholder: The batch job that it runs in.
        workers: How many workers it has.
    """

    node: str
    address: str
    placeholder: str
    workers: int = 0


class AgentRegistry:
    """Serves the connections of agents, in one event loop."""

    def __init__(
        self,
        token: bytes,
        on_change: Callable[[], None],
        reclaim_timer: ReclaimTimer = ignore_time,
    ) -> None:
        """Begin without agents.

        Args:
            token: The token of the installation, which agents must know.
            on_change: Called after every change of `present` or `leaving`.
            reclaim_timer: Told how long agents take to leave.
        """
        self._token = token
        self._on_change = on_change
        self._present: dict[str, RegisteredAgent] = {}
        self._reclaim_timer = reclaim_timer
        self._leaving: dict[str, float] = {}
        self._departed: list[str] = []
        self._peers: dict[str, AgentStream] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._server: asyncio.Server | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def present(self) -> Mapping[str, RegisteredAgent]:
        """Agents that have reported and are not leaving, by node."""
        return {node: entry for node, entry in self._present.items() if node not in self._leaving}

    @property
    def leaving(self) -> list[RegisteredAgent]:
        """Agents that were told to leave, by the scheduler or by us, and have not left."""
        return [entry for node, entry in self._present.items() if node in self._leaving]

    def ask_to_leave(self, nodes: Iterable[str]) -> None:
        """Tell agents to leave, with their workers. One whose connection is lost is told when it reconnects."""
        for node in nodes:
            if node in self._present and node not in self._leaving:
                self._note_leaving(node)
                self._tell_to_leave(node)
                self._on_change()

    def _note_leaving(self, node: str) -> None:
        self._leaving.setdefault(node, asyncio.get_running_loop().time())

    def _tell_to_leave(self, node: str) -> None:
        if (peer := self._peers.get(node)) is not None:
            self._log.info("agent told to leave", node=node)
            peer.send({"op": "leave"})

    def take_departed(self) -> list[str]:
        """Identifiers of the placeholders whose agents have left since the last call."""
        gone, self._departed = self._departed, []
        return gone

    async def open(self, host: str, port: int) -> int:
        """Listen for agents.

        Returns:
            The port.

        Raises:
            OSError: the address can't be used.
        """
        self._server = await asyncio.start_server(self._begin, host, port, limit=LONGEST_LINE_BYTES)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening. Agents go on, and try to connect again."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers.values()):
            peer.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = await accept_stream(reader, writer, self._token)
            hello = await peer.read()
            entry = _present(hello or {}, writer.get_extra_info("peername")[0])
        except (AgentProtocolError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            self._log.warning("an agent was refused", error=str(error))
            writer.close()
            return
        if (earlier := self._peers.get(entry.node)) is not None:
            earlier.close()
        self._peers[entry.node] = peer
        if self._present.get(entry.node, entry).placeholder != entry.placeholder:
            self._forget(entry.node)
        self._present[entry.node] = entry
        if entry.node in self._leaving:
            self._tell_to_leave(entry.node)
        self._log.info("agent here", node=entry.node, placeholder=entry.placeholder, address=entry.address)
        self._on_change()
        try:
            while (message := await peer.read()) is not None:
                self._handle(entry.node, message)
        except AgentProtocolError as error:
            self._log.warning("an agent can't be understood", node=entry.node, error=str(error))
        finally:
            peer.close()
        if self._peers.get(entry.node) is peer:
            del self._peers[entry.node]
            loop = asyncio.get_running_loop()
            self._timers[entry.node] = loop.call_later(_LOST_SECONDS, self._expire, entry)

    def _handle(self, node: str, message: Message) -> None:
        match message.get("event"):
            case "alive":
                workers = int(message.get("workers", 0))
                if node in self._present and self._present[node].workers != workers:
                    self._present[node] = replace(self._present[node], workers=workers)
                    self._on_change()
            case "leaving":
                self._log.info("node is wanted back", node=node)
                self._note_leaving(node)
                self._on_change()
            case "gone":
                self._forget(node)
                self._on_change()

    def _expire(self, entry: RegisteredAgent) -> None:
        if entry.node not in self._peers and self._present.get(entry.node, entry).placeholder == entry.placeholder:
            self._forget(entry.node)
            self._on_change()

    def _forget(self, node: str) -> None:
        entry = self._present.pop(node, None)
        since = self._leaving.pop(node, None)
        if entry is not None:
            if since is not None:
                self._reclaim_timer(AGENT_LEFT, asyncio.get_running_loop().time() - since)
            self._log.info("agent gone", node=node, placeholder=entry.placeholder)
            self._departed.append(entry.placeholder)


def agent_placeholder_id(node: str) -> str:
    """Identifier that is used for an agent without a placeholder."""
    return f"agent on {node}"


def _present(hello: Message, host: str) -> RegisteredAgent:
    node = str(hello["node"])
    if hello.get("event") != "here" or not node:
        raise AgentProtocolError(f"expected the event here with a node, got {hello!r:.200}")
    return RegisteredAgent(
        node, f"{host}:{int(hello['port'])}", str(hello.get("placeholder") or agent_placeholder_id(node))
    )
