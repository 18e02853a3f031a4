"""Addresses of servers, as HOST:PORT."""

from __future__ import annotations

import socket
from contextlib import ExitStack

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach what listens there, so that nothing needs to be encrypted.

    Args:
        address: HOST:PORT.
    """
    return host_of(address) in _LOOPBACK


def host_of(address: str) -> str:
    """The host of HOST:PORT, with the brackets of an IPv6 address."""
    return address.rpartition(":")[0]


def free_loopback_ports(count: int) -> list[int]:
    """Different ports of loopback on which nothing listens now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]
