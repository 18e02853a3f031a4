"""Where a running dashboard tells its own account a new link: a Unix socket that no other account can reach.

Nothing secret is sent there: whoever asks says nothing, and both sides check the account of the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from malletrain.client.feeding.private_folder import PrivateFolder, check_peer

_MAX_BYTES = 4096
_SECONDS = 30.0
"""How long a dashboard may take to answer; it may have to ask JobManager for a token first."""
_PAUSE_S = 1.0


def links_folder() -> Path:
    """The folder of this account's sockets. Not TMPDIR, which may be another one in each session."""
    return Path(f"/tmp/malletrain-dashboard-{os.geteuid()}")


def may_print_link() -> bool:
    """Whether standard output is a terminal itself: TTY_COMPATIBLE=1 is for colours, and a log may be behind it."""
    return sys.stdout.isatty()


def _name_of(host: str, port: int) -> str:
    """Name of a dashboard's socket. The folder may be that of several machines or containers, each with such a port."""
    try:
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        network = 0
    place = f"{socket.gethostname()}\0{network}\0{host}"
    return f"{port}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"  # short enough for a socket


@contextmanager
def listening(folder: Path, host: str, port: int) -> Iterator[socket.socket]:
    """Listen for questions while the context lasts.

    Args:
        folder: As `links_folder`.
        host: Address on which the dashboard listens.
        port: Its port.

    Raises:
        OSError: one can't listen there; PermissionError: others could enter the folder.
    """
    private, name = PrivateFolder(folder), _name_of(host, port)
    try:
        with private.listen(name) as listener:
            made = private.file_id(name)
            try:
                listener.setblocking(False)
                yield listener
            finally:
                # Before it is closed: then no other socket can have its number. Another dashboard's is left alone.
                if made is not None and private.file_id(name) == made:
                    private.remove(name)
    finally:
        private.close()


async def tell_links(listener: socket.socket, new_link: Callable[[], Awaitable[str]]) -> None:
    """Answer each connection with a new link, until cancelled.

    Args:
        listener: As `listening` gives it.
        new_link: Makes a link; empty where there can be none now.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
            with connection:
                connection.setblocking(False)
                check_peer(connection)
                await loop.sock_sendall(connection, (await new_link()).encode())
        except OSError:  # another account, one that has gone, or no descriptors are left now
            await asyncio.sleep(_PAUSE_S)


def ask_for_link(folder: Path, host: str, port: int) -> str | None:
    """A new link of the dashboard of this account at an address; None: none runs there, or it has no token now.

    Args:
        folder: As `links_folder`.
        host: Address on which the dashboard listens.
        port: Its port.

    Raises:
        OSError: it does not answer; PermissionError: another account listens, or could enter the folder.
    """
    private = PrivateFolder(folder)
    try:
        connection = private.connect(_name_of(host, port))
        if connection is None:
            return None
        with connection:
            connection.settimeout(_SECONDS)
            return connection.recv(_MAX_BYTES).decode("ascii", "replace") or None
    finally:
        private.close()
