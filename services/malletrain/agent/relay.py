"""How trainers on nodes reach Monitor: through the agent, which has the token, to a gate on the head node.

Monitor itself listens on loopback only. The token stays with the agent: the jobs' own code never sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from malletrain.agent.handshake import LONGEST_LINE_BYTES, accept, connect
from malletrain.agent.wire import WireError

GATE = "MALLETRAIN_MONITOR_GATE"
"""Variable of a worker that names the gate, HOST:PORT as the node sees it."""
MONITOR = "MALLETRAIN_MONITOR"
"""Variable of a worker that names Monitor as its process sees it."""
_ROLE = "relay"
_LOOPBACK = "127.0.0.1"


class Relays:
    """On a node: for every gate a loopback port that leads to it. Use from one event loop."""

    def __init__(self, token: bytes, say: Callable[[str], None]) -> None:
        """Begin with none.

        Args:
            token: The installation's secret.
            say: Notes what went wrong.
        """
        self._token = token
        self._say = say
        self._ports: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def to(self, gate: str) -> str:
        """HOST:PORT on this node that leads to a gate.

        Raises:
            ValueError: the gate is not HOST:PORT.
            OSError: no port can be had.
        """
        host, _, port = gate.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{GATE}: expected HOST:PORT, got {gate!r}")
        if gate not in self._ports:
            listening = socket.create_server((_LOOPBACK, 0))
            self._ports[gate] = listening.getsockname()[1]
            self._keep(self._listen(listening, host.strip("[]"), int(port)))
        return f"{_LOOPBACK}:{self._ports[gate]}"

    async def close(self) -> None:
        """End all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, listening: socket.socket, host: str, port: int) -> None:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._keep(self._lead(reader, writer, host, port))

        server = await asyncio.start_server(begin, sock=listening)
        async with server:
            await server.serve_forever()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        try:
            gate = await connect(host, port, self._token, _ROLE)
        except (WireError, OSError, TimeoutError, ValueError) as error:
            self._say(f"Monitor's gate at {host}:{port}: {error}")
            writer.close()
            return
        await gate.join(reader, writer)


async def keep_gate(address: str, token: bytes, target: str, say: Callable[[str], None]) -> None:
    """On the head node: lead those that have the token to a service on loopback, until cancelled.

    Args:
        address: HOST:PORT to listen on.
        token: The installation's secret.
        target: HOST:PORT of the service.
        say: Notes who was refused.

    Raises:
        OSError: the address can't be used.
    """
    host, _, port = address.rpartition(":")
    talks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(_admit(reader, writer, token, target, say))
        talks.add(talk)
        talk.add_done_callback(talks.discard)

    server = await asyncio.start_server(begin, host.strip("[]"), int(port), limit=LONGEST_LINE_BYTES)
    try:
        async with server:
            await server.serve_forever()
    finally:
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, target: str, say: Callable[[str], None]
) -> None:
    with contextlib.closing(writer):
        try:
            peer = await accept(reader, writer, token)
            host, _, port = target.rpartition(":")
            inner = await asyncio.open_connection(host.strip("[]"), int(port))
        except (WireError, OSError, TimeoutError, ValueError) as error:
            say(str(error))
            return
        await peer.join(*inner)
