"""Connects trainers on other nodes to Monitor, which itself listens on loopback only."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from malletrain.common.agent_protocol import LONGEST_LINE_BYTES, AgentProtocolError
from malletrain.common.agent_streams import accept_stream
from malletrain.runtime.config import Settings
from malletrain.runtime.token import installation_token

_RETRY_SECONDS = 5.0


class MonitorProxy:
    """Accepts the connections of node agents that know the token, and forwards them to Monitor."""

    def __init__(self, settings: Settings) -> None:
        """Read the installation's token, or create it. Without `addresses.monitor_gate` there is no proxy.

        Raises:
            InvalidInputError: the token can't be created or used.
        """
        self._address = settings.addresses.monitor_gate
        self._target = settings.addresses.monitor
        self._token = installation_token(settings.state_dir) if self._address else b""
        self._connections: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Forward connections until cancelled. Retries if the address is in use."""
        while self._address:
            try:
                self._log.info("gate", address=self._address)
                await self._serve()
            except OSError as error:
                address = self._address
                self._log.warning("addresses.monitor_gate can't be listened on", address=address, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _serve(self) -> None:
        host, _, port = self._address.rpartition(":")
        server = await asyncio.start_server(self._accept, host.strip("[]"), int(port), limit=LONGEST_LINE_BYTES)
        try:
            async with server:
                await server.serve_forever()
        finally:
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._forward(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                agent = await accept_stream(reader, writer, self._token)
                host, _, port = self._target.rpartition(":")
                monitor = await asyncio.open_connection(host.strip("[]"), int(port))
            except (AgentProtocolError, OSError, TimeoutError, ValueError) as error:
                self._log.warning("connection refused", error=str(error))
                return
            await agent.forward(*monitor)
