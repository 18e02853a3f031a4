"""Which account of this machine opens a link that lets one browser in.

The command line of a browser, and so the address that it is to open, can be read by every account of the machine
(proc(5)). The kernel knows whose a connection from this machine is. That of `ssh -L` is made by a process of sshd with
the account of whoever has logged in.
"""

from __future__ import annotations

from collections.abc import Callable

from tornado.httputil import HTTPServerRequest

from malletrain.common.connection_owner import Endpoint, connection_owner, is_loopback_address, listed_owner

OwnerOf = Callable[[Endpoint, Endpoint], int | None]


def owner_by_kernel(peer: Endpoint, local: Endpoint) -> int | None:
    """The user id of a connection's other side. May block for a second, and longer with very many connections.

    The kernel is asked in both ways: where the first has no module for TCP, it says that there is no such connection.

    Returns:
        None: the connection is not from this machine or has ended, or the kernel doesn't tell.
    """
    uid = connection_owner(peer, local)
    return listed_owner(peer, local) if uid is None else uid


def ends_of(request: HTTPServerRequest) -> tuple[Endpoint, Endpoint] | None:
    """Both sides of the connection of a request, the browser's first; None where it has ended."""
    stream = getattr(request.connection, "stream", None)
    socket = stream.socket if stream is not None else None
    if socket is None:
        return None
    try:
        return socket.getpeername()[:2], socket.getsockname()[:2]
    except OSError:
        return None


def objection(ends: tuple[Endpoint, Endpoint], user_id: int, owner_of: OwnerOf) -> str:
    """Why a link is not for whoever has made a connection, in words for a log; empty where it may be.

    The peer's address does not matter: from this machine one can come to loopback by any of its addresses.

    Args:
        ends: The peer's side, and ours.
        user_id: The account of this process.
        owner_of: As `owner_by_kernel`.
    """
    peer, local = ends
    owner = owner_of(peer, local)
    if owner is not None:
        return "" if owner == user_id else f"opened by user id {owner} of this machine, expected {user_id}"
    # The kernel lists our side, and so would list the other, which is on this machine, too.
    if is_loopback_address(peer[0]) and owner_of(local, peer) is not None:
        return "whoever opened it has gone, so that the kernel no longer says who it was"
    return ""
