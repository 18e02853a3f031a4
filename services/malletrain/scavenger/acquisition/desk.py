"""Where node agents report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from malletrain.agent.handshake import LONGEST_LINE_BYTES, Peer, accept
from malletrain.agent.wire import Message, WireError
from malletrain.scavenger.reclaim_steps import AGENT_LEFT, ReclaimStep, unmeasured

_LOST_SECONDS = 2.0
"""An agent whose connection breaks is back in a third of a second; one that is not has died."""


@dataclass(frozen=True)
class Present:
    """An agent that is there.

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


class AgentDesk:
    """Takes the reports of agents; all of it in one event loop."""

    def __init__(
        self,
        token: bytes,
        on_change: Callable[[], None],
        reclaim_step: ReclaimStep = unmeasured,
    ) -> None:
        """Know none.

        Args:
            token: The installation's secret.
            on_change: Called after every change of who is there, or leaves.
            reclaim_step: Told how long agents take to leave, in seconds.
        """
        self._token = token
        self._on_change = on_change
        self._present: dict[str, Present] = {}
        self._reclaim_step = reclaim_step
        self._leaving: dict[str, float] = {}
        self._gone: list[str] = []
        self._peers: dict[str, Peer] = {}
        self._talks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._server: asyncio.Server | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def present(self) -> Mapping[str, Present]:
        """Agents that are there and stay, by node."""
        return {node: entry for node, entry in self._present.items() if node not in self._leaving}

    @property
    def leaving(self) -> list[Present]:
        """Those that have been told to leave, by the scheduler or by us."""
        return [entry for node, entry in self._present.items() if node in self._leaving]

    def dismiss(self, nodes: Iterable[str]) -> None:
        """Have agents leave, their workers with them; one whose connection is lost is told when it is back."""
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

    def gone(self) -> list[str]:
        """Placeholders whose agents have left since the last call."""
        gone, self._gone = self._gone, []
        return gone

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address can't be used.
        """
        self._server = await asyncio.start_server(self._begin, host, port, limit=LONGEST_LINE_BYTES)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening; agents stay and look for the next one."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers.values()):
            peer.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._serve(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = await accept(reader, writer, self._token)
            hello = await peer.read()
            entry = _present(hello or {}, writer.get_extra_info("peername")[0])
        except (WireError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
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
                self._hear(entry.node, message)
        except WireError as error:
            self._log.warning("an agent can't be understood", node=entry.node, error=str(error))
        finally:
            peer.close()
        if self._peers.get(entry.node) is peer:
            del self._peers[entry.node]
            loop = asyncio.get_running_loop()
            self._timers[entry.node] = loop.call_later(_LOST_SECONDS, self._miss, entry)

    def _hear(self, node: str, message: Message) -> None:
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

    def _miss(self, entry: Present) -> None:
        if entry.node not in self._peers and self._present.get(entry.node, entry).placeholder == entry.placeholder:
            self._forget(entry.node)
            self._on_change()

    def _forget(self, node: str) -> None:
        entry = self._present.pop(node, None)
        since = self._leaving.pop(node, None)
        if entry is not None:
            if since is not None:
                self._reclaim_step(AGENT_LEFT, asyncio.get_running_loop().time() - since)
            self._log.info("agent gone", node=node, placeholder=entry.placeholder)
            self._gone.append(entry.placeholder)


def name_of_agent(node: str) -> str:
    """What stands for the placeholder of an agent that runs in none."""
    return f"agent on {node}"


def _present(hello: Message, host: str) -> Present:
    node = str(hello["node"])
    if hello.get("event") != "here" or not node:
        raise WireError(f"expected the event here with a node, got {hello!r:.200}")
    return Present(node, f"{host}:{int(hello['port'])}", str(hello.get("placeholder") or name_of_agent(node)))
