"""torch's store for the nodes of one job alone.

TCPStore itself listens on every interface and asks nobody who he is. Here it listens on loopback, behind a packet
filter; peers connect to a listener on the named address, which looks at theirs and forwards what they send.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from malletrain.common.connection_owner import Endpoint, owners_of_peers
from malletrain.supervisor.source_port_filter import admit_only

_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096
_TRIES = 10
_CHUNK_BYTES = 64 << 10

log = logging.getLogger(__name__)


class GuardedStore:
    """A store that serves until it is closed.

    Attributes:
        port: Where peers connect.
    """

    def __init__(
        self, open_store: Callable[..., Any], address: str, admits: Callable[[Endpoint, Endpoint], bool]
    ) -> None:
        """Serve.

        Args:
            open_store: torch.distributed.TCPStore.
            address: Address of this machine as the workers see it.
            admits: Whether a peer may connect, given its side and ours.

        Raises:
            OSError: the address can't be listened on.
        """
        self._admits = admits
        self._ports: set[int] = set()
        self._inner, self._store = self._open(open_store)
        self._target = self._inner.getsockname()
        outer = socket.create_server((address, 0), family=_family(address), backlog=_BACKLOG)
        self.port: int = outer.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(outer,), name="store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the store and all connections to it."""
        with contextlib.suppress(RuntimeError):  # the loop has ended by a defect
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._store = None
        self._inner.close()

    def _open(self, open_store: Callable[..., Any]) -> tuple[socket.socket, Any]:
        """A store with its listening socket. One that a stranger has reached before the filter is not used."""
        for _ in range(_TRIES):
            inner = socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
            store = open_store(
                *inner.getsockname(), is_master=True, wait_for_workers=False, master_listen_fd=os.dup(inner.fileno())
            )
            self._filter(inner)
            if owners_of_peers(inner.getsockname()) <= {os.geteuid()}:
                return inner, store
            inner.close()
        raise OSError("another account on this machine connects to every port that is opened")

    def _filter(self, inner: socket.socket) -> None:
        try:
            admit_only(inner, self._ports)
        except OSError as error:
            log.warning("accounts on this machine can reach the store of this job: no packet filter (%s)", error)

    def _run(self, outer: socket.socket) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(outer))

    async def _serve(self, outer: socket.socket) -> None:
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._forward(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        async with await asyncio.start_server(accept, sock=outer):
            await self._ending.wait()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, local = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        with contextlib.closing(writer):
            if not self._admits(peer, local):
                log.warning("refused a connection from %s to the store", peer[0])
                return
            inner = socket.socket()
            inner.bind((_LOOPBACK, 0))
            port = inner.getsockname()[1]
            self._ports.add(port)
            try:
                self._filter(self._inner)
                inner.connect(self._target)  # the kernel answers at once: both sides are on this machine
                await _copy_both(reader, writer, *await asyncio.open_connection(sock=inner))
            except (OSError, ValueError) as error:
                log.warning("the store can't be reached for %s: %s", peer[0], error)
            finally:
                self._ports.discard(port)
                self._filter(self._inner)
                inner.close()


async def _copy_both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inner_reader: asyncio.StreamReader,
    inner_writer: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until either side has ended."""
    directions = [
        asyncio.create_task(_copy(reader, inner_writer)),
        asyncio.create_task(_copy(inner_reader, writer)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        inner_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
