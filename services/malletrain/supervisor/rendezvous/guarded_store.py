"""torch's store for the nodes of one job alone.

TCPStore itself listens on every interface and asks nobody who he is. Here it listens on loopback, behind a packet
filter or, where the kernel has none for us, with a secret that connections are signed with; peers connect to a listener
on the named address, which looks at theirs and forwards what they send.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from malletrain.common.connection_owner import Endpoint, owners_of_peers
from malletrain.common.tasks import start_task, start_thread
from malletrain.supervisor.rendezvous.connection_filters import admit_only, new_key, require_signatures

_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096
_TRIES = 10
_CHUNK_BYTES = 64 << 10

log = logging.getLogger(__name__)


class GuardedStore:
    """A store that serves until it is closed.

    Attributes:
        port: Where peers connect.
        reached: Whether a peer has connected.
    """

    def __init__(
        self,
        open_store: Callable[..., Any],
        address: str,
        admits: Callable[[Endpoint, Endpoint], bool],
        *,
        may_be_open: bool = False,
    ) -> None:
        """Opens the store, and serves it in a thread until `close`.

        Args:
            admits: Whether a peer may connect, given its side and ours.
            may_be_open: Whether the operator accepts a store that every account of this machine can reach, where the
                kernel keeps nobody out.

        Raises:
            OSError: the address can't be listened on, or other accounts can't be kept out.
        """
        self.reached = False
        self._admits = admits
        self._may_be_open = may_be_open
        self._ports: set[int] = set()
        self._key: bytes | None = None
        self._ports_matter = True
        self._inner, self._store = self._open(open_store)
        self._target = self._inner.getsockname()
        outer = socket.create_server((address, 0), family=_family(address), backlog=_BACKLOG)
        self.port: int = outer.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = start_thread(lambda: self._run(outer), "store")

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
            try:
                self._shut(inner)
            except OSError:
                del store  # it holds the listening socket, and the error holds this frame
                inner.close()
                raise
            if owners_of_peers(inner.getsockname()) <= {os.geteuid()}:
                return inner, store
            inner.close()
        raise OSError("another account on this machine connects to every port that is opened")

    def _shut(self, inner: socket.socket) -> None:
        """Keep other accounts of this machine out.

        Raises:
            OSError: the kernel can't, and the operator does not accept that.
        """
        try:
            return admit_only(inner, self._ports)
        except OSError as error:
            refused = error
        key = new_key()
        try:
            require_signatures(inner, key)
            self._key = key
        except OSError as error:
            reason = f"no packet filter ({refused}), and no signatures ({error})"
            if not self._may_be_open:
                raise OSError(
                    f"other accounts on this machine could reach the store of this job: {reason}; "
                    "where there are none, set job_manager.accept_open_store"
                ) from error
            log.warning("accounts on this machine can reach the store of this job: %s", reason)
            self._ports_matter = False

    def _admit_our_ports(self) -> None:
        """Let in connections from the ports that we hold now; those with a key need no port."""
        if self._ports_matter and self._key is None:
            admit_only(self._inner, self._ports)

    def _run(self, outer: socket.socket) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve(outer))

    async def _serve(self, outer: socket.socket) -> None:
        connections: set[asyncio.Task[object]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = start_task(self._forward(reader, writer), "connection to the store", _note_failure)
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
            self.reached = True
            inner = socket.socket()
            inner.bind((_LOOPBACK, 0))
            port = inner.getsockname()[1]
            self._ports.add(port)
            try:
                if self._key is not None:
                    require_signatures(inner, self._key)
                self._admit_our_ports()
                inner.connect(self._target)  # the kernel answers at once: both sides are on this machine
                await _copy_both(reader, writer, *await asyncio.open_connection(sock=inner))
            except (OSError, ValueError) as error:
                log.warning("the store can't be reached for %s: %s", peer[0], error)
            finally:
                self._ports.discard(port)
                with contextlib.suppress(OSError, ValueError):  # the port then stays open to a socket that takes it
                    self._admit_our_ports()
                inner.close()


def _note_failure(error: BaseException) -> None:
    log.warning("a connection to the store is given up: %r", error)


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
