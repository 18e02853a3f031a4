"""Where a running dashboard tells its own account a new link: a Unix socket that no other account can reach.

Nothing secret is sent there: whoever asks says nothing, and both sides check the account of the other.
"""

from __future__ import annotations

import asyncio
import os
import socket
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


@contextmanager
def listening(folder: Path, port: int) -> Iterator[socket.socket]:
    """Listen for questions while the context lasts.

    Args:
        folder: As `links_folder`.
        port: Port of the dashboard.

    Raises:
        OSError: one can't listen there; PermissionError: others could enter the folder.
    """
    private = PrivateFolder(folder)
    try:
        with private.listen(str(port)) as listener:
            listener.setblocking(False)
            yield listener
        private.remove(str(port))
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


def ask_for_link(folder: Path, port: int) -> str | None:
    """A new link of the dashboard of this account on a port; None: none runs there, or it has no token now.

    Raises:
        OSError: it does not answer; PermissionError: another account listens, or could enter the folder.
    """
    private = PrivateFolder(folder)
    try:
        connection = private.connect(str(port))
        if connection is None:
            return None
        with connection:
            connection.settimeout(_SECONDS)
            return connection.recv(_MAX_BYTES).decode("ascii", "replace") or None
    finally:
        private.close()
