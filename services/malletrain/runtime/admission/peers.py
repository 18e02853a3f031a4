"""Who is at the other end of a connection: the account on this machine, as the kernel tells, or the other machine."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

from malletrain.common.connection_owner import Endpoint, connection_owner, is_loopback_address, plain_address

OwnerOf = Callable[[Endpoint, Endpoint], int | None]


def endpoint_of(peer: str) -> Endpoint | None:
    """Address and port of a peer as gRPC names it, e.g. `ipv4:127.0.0.1:4711`; None where it has none."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


class PeerNames:
    """Names peers, by whom calls without a token are counted."""

    def __init__(self, address: str, owner_of: OwnerOf = connection_owner) -> None:
        """
        Args:
            address: HOST:PORT on which it listens.
            owner_of: Returns the user id of a peer on this machine.
        """
        self._host = address.rpartition(":")[0].strip("[]")
        self.port = int(address.rpartition(":")[2])
        self._owner_of = owner_of

    def name(self, peer: str) -> str:
        """E.g. "uid 1003" for a process on this machine, or the address of another machine.

        Args:
            peer: The peer as gRPC names it.
        """
        endpoint = endpoint_of(peer)
        if endpoint is None:
            return peer.partition(":")[0]
        host = plain_address(endpoint[0])
        if not is_loopback_address(host) and host != plain_address(self._host):
            return host
        # A connection from loopback to loopback has the same family on both sides.
        local = self._host if self._host != "localhost" else ("::1" if ":" in host else "127.0.0.1")
        owner = self._owner_of((host, endpoint[1]), (local, self.port))
        return host if owner is None else f"uid {owner}"
