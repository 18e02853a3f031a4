"""What a node agent does: serve supervisors, tell the Scavenger that it is here, leave when the node is wanted back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from malletrain.agent.handshake import LONGEST_LINE_BYTES, Peer, accept, connect
from malletrain.agent.preempted import AskError, was_preempted
from malletrain.agent.relay import Relays
from malletrain.agent.wire import Message, WireError
from malletrain.agent.workers import Workers

_LOOK_SECONDS = 0.02
_ALIVE_SECONDS = 5.0
_RETRY_SECONDS = 0.3


@dataclass(frozen=True)
class Terms:
    """How an agent works.

    Attributes:
        node: Name of the node.
        head: Where the Scavenger listens for agents: host and port.
        listen: Address to serve supervisors on.
        placeholder: Identifier of the batch job that holds the node; empty where there is none.
        in_slurm: That is a job of Slurm.
        grace_seconds: What workers have to leave by themselves once the node is wanted back.
        orphan_seconds: How long the agent stays without work when no Scavenger answers.
    """

    node: str
    head: tuple[str, int]
    listen: str
    placeholder: str
    grace_seconds: float
    orphan_seconds: float
    in_slurm: bool = False


class Agent:
    """One node's agent."""

    def __init__(self, terms: Terms, token: bytes) -> None:
        """Do nothing yet.

        Args:
            terms: How to work.
            token: The installation's secret.
        """
        self._terms = terms
        self._token = token
        self._sessions: set[Workers] = set()
        self._relays = Relays(token, self._say)
        self._talks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._head: Peer | None = None
        self._heard_at = time.monotonic()
        self._leave_by: float | None = None
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Work until the node is wanted back, or nobody wants the agent any more."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_to_leave)
        server = await asyncio.start_server(self._begin, self._terms.listen, 0, limit=LONGEST_LINE_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        self._say(f"node {self._terms.node} is served on {self._terms.listen}:{self._port}")
        tasks = [loop.create_task(self._keep_in_touch()), loop.create_task(self._look())]
        if self._terms.in_slurm:
            tasks.append(loop.create_task(self._leave_if_preempted()))
        await self._left.wait()
        if self._head is not None:
            self._head.send({"event": "gone"})
            await self._head.drain()
        open_ends = [*tasks, *self._talks]
        for task in open_ends:
            task.cancel()
        await asyncio.gather(*open_ends, return_exceptions=True)
        await self._relays.close()
        server.close()

    def _begin_to_leave(self) -> None:
        if self._leave_by is None:
            self._say(f"node {self._terms.node} is wanted back")
            self._leave_by = time.monotonic() + self._terms.grace_seconds
            if self._head is not None:
                self._head.send({"event": "leaving"})

    async def _leave_if_preempted(self) -> None:
        try:
            if await was_preempted(self._terms.placeholder):
                self._begin_to_leave()
        except AskError as error:
            self._say(f"whether the node is wanted back is not known: {error}")

    # -- supervisors -----------------------------------------------------------------------------------------------

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._serve(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One supervisor, until its connection is lost: then its workers are killed, as if it had been their parent."""
        try:
            peer = await accept(reader, writer, self._token)
        except (WireError, OSError, TimeoutError, ValueError) as error:
            self._say(f"refused a connection: {error}")
            writer.close()
            return
        workers = Workers(self._terms.node, self._terms.head[0], peer.send, self._relays.to)
        self._sessions.add(workers)
        try:
            while (message := await peer.read()) is not None:
                workers.obey(message)
        except WireError as error:
            self._say(f"{peer.role}: {error}")
        finally:
            workers.kill()
            while len(workers):
                workers.look()
                await asyncio.sleep(_LOOK_SECONDS)
            workers.kill()
            self._sessions.discard(workers)
            peer.close()

    async def _look(self) -> None:
        while True:
            for workers in list(self._sessions):
                workers.look()
            self._leave_if_due(time.monotonic())
            await asyncio.sleep(_LOOK_SECONDS)

    def _leave_if_due(self, now: float) -> None:
        busy = any(len(workers) for workers in self._sessions)
        if self._leave_by is not None:
            if now >= self._leave_by:
                for workers in self._sessions:
                    workers.kill()
            if not busy:
                for workers in self._sessions:
                    workers.kill()  # what has left its group
                self._left.set()
        elif not busy and self._head is None and now - self._heard_at >= self._terms.orphan_seconds:
            self._say("nobody answers, and there is no work")
            self._left.set()

    # -- the Scavenger ---------------------------------------------------------------------------------------------

    async def _keep_in_touch(self) -> None:
        while True:
            try:
                peer = await connect(*self._terms.head, self._token, "agent")
            except (WireError, OSError, TimeoutError, ValueError):
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._head = peer
            try:
                await self._talk(peer)
            except WireError as error:
                self._say(f"Scavenger: {error}")
            finally:
                self._head = None
                self._heard_at = time.monotonic()
                peer.close()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _talk(self, peer: Peer) -> None:
        peer.send(self._hello())
        if self._leave_by is not None:
            peer.send({"event": "leaving"})
        alive = asyncio.create_task(self._beat(peer))
        try:
            while (message := await peer.read()) is not None:
                if message.get("op") == "leave":
                    self._begin_to_leave()
        finally:
            alive.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await alive

    async def _beat(self, peer: Peer) -> None:
        while True:
            peer.send({"event": "alive", "workers": sum(len(workers) for workers in self._sessions)})
            await asyncio.sleep(_ALIVE_SECONDS)

    def _hello(self) -> Message:
        return {
            "event": "here",
            "node": self._terms.node,
            "port": self._port,
            "placeholder": self._terms.placeholder,
        }

    def _say(self, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(f"{now} malletrain.agent: {text}", file=sys.stderr, flush=True)
