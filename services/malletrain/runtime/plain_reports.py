"""One port for calls with and without TLS: for trainers of version 0.1, which report to Monitor without.

gRPC serves either kind on a port. So it serves both on Unix sockets that only this account can reach, and what is here
looks at the first byte of each connection and passes it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

_TLS_HANDSHAKE = 0x16
"""First byte of a connection with TLS; one without begins with the letters of HTTP/2."""
_GREETING_SECONDS = 10.0
_CHUNK_BYTES = 64 * 1024


class TwoKindsOfConnections:
    """Listens, and passes on what connects. Use from one event loop."""

    def __init__(self) -> None:
        """Make the folder of the sockets; nothing listens yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="malletrain-monitor-")
        self._server: asyncio.Server | None = None

    @property
    def with_tls(self) -> Path:
        """Socket on which the gRPC server takes connections with TLS."""
        return Path(self._folder.name, "tls")

    @property
    def plain(self) -> Path:
        """Socket on which the gRPC server takes those without."""
        return Path(self._folder.name, "plain")

    async def listen(self, host: str, port: int) -> int:
        """Take connections; returns the port.

        Args:
            host: Address of this machine.
            port: Its port; 0: any that is free.

        Raises:
            OSError: the address can't be bound.
        """
        self._server = await asyncio.start_server(self._take, host, port, reuse_address=True)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()
        self._folder.cleanup()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # How many there may be of one peer, the server's limiter sees to.
        try:
            await self._pass_on(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it ends as any other connection that breaks
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await asyncio.wait_for(reader.readexactly(1), _GREETING_SECONDS)
        path = self.with_tls if first[0] == _TLS_HANDSHAKE else self.plain
        from_server, to_server = await asyncio.open_unix_connection(path)
        try:
            to_server.write(first)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, to_server))
                group.create_task(_pump(from_server, writer))
        except* OSError:
            pass
        finally:
            to_server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on bytes no faster than they are taken, until one side ends."""
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
