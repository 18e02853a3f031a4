"""How trainers on nodes reach Monitor: through their node's agent, which connects to Monitor's proxy on the head node.

Monitor itself listens on loopback only. Only the agent knows the token, so the code of jobs never sees it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from malletrain.common import environment as env
from malletrain.common.agent_protocol import AgentProtocolError
from malletrain.common.agent_streams import open_stream

_ROLE = "relay"
_LOOPBACK = "127.0.0.1"


class MonitorRelay:
    """Listens on loopback and forwards connections to Monitor's proxy. Use from one event loop."""

    def __init__(self, token: bytes, log: Callable[[str], None]) -> None:
        """Listen on nothing yet.

        Args:
            token: The installation's secret.
            log: Called with a line for each error.
        """
        self._token = token
        self._log = log
        self._ports: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def address_for(self, proxy: str) -> str:
        """Address on this node that leads to a proxy, as HOST:PORT.

        Args:
            proxy: HOST:PORT of the proxy.

        Raises:
            ValueError: the proxy's address is not HOST:PORT.
            OSError: no port is free.
        """
        host, _, port = proxy.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{env.MONITOR_GATE}: expected HOST:PORT, got {proxy!r}")
        if proxy not in self._ports:
            listening = socket.create_server((_LOOPBACK, 0))
            self._ports[proxy] = listening.getsockname()[1]
            self._start(self._listen(listening, host.strip("[]"), int(port)))
        return f"{_LOOPBACK}:{self._ports[proxy]}"

    async def close(self) -> None:
        """Close all connections and stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, listening: socket.socket, host: str, port: int) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._start(self._forward(reader, writer, host, port))

        server = await asyncio.start_server(accept, sock=listening)
        async with server:
            await server.serve_forever()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        try:
            proxy = await open_stream(host, port, self._token, _ROLE)
        except (AgentProtocolError, OSError, TimeoutError, ValueError) as error:
            self._log(f"Monitor's proxy at {host}:{port}: {error}")
            writer.close()
            return
        await proxy.forward(reader, writer)
