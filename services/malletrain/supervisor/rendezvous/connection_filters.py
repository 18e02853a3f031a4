"""Who may connect to what a job's workers meet at: neither Horovod's rendezvous nor torch's store asks for a secret.

Any process on a machine can connect to what listens on loopback. Three ways keep others out, none of which needs
privileges:

- `PeerFilter`: by the address, and on this machine by the account that the other end of a connection belongs to.
- `require_signatures`: the kernel signs each packet (RFC 2385). Kernels that refuse an unprivileged process a packet
  filter have it. MD5 is weak against who sees signed packets; on loopback nobody but root does.
- `admit_only`: a classic BPF program, which the kernel runs on each packet for the socket and for those that it accepts
  (socket(7), SO_ATTACH_FILTER).
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import struct
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from malletrain.common.connection_owner import Endpoint, connection_owner, is_loopback_address, plain_address

MAX_PORTS = 2000
"""A program has at most 4096 instructions."""

_SO_ATTACH_FILTER = 26
_LOAD_HALF, _LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_SOURCE_PORT = 0
"""Offset in the TCP header, at which programs on TCP sockets begin."""
_SOURCE_ADDRESS = (-0x100000 + 12) & 0xFFFFFFFF
"""Offset in the IPv4 header: SKF_NET_OFF and twelve bytes."""
_PASS, _DROP = 0xFFFFFFFF, 0
_LOOPBACK = 0x7F000001


def admit_only(listening: socket.socket, ports: Collection[int]) -> None:
    """Let in connections from 127.0.0.1 and these ports only; accepted sockets keep the filter of that moment.

    Args:
        listening: A listening IPv4 socket.
        ports: Ports of sockets of our own, at most `MAX_PORTS`.

    Raises:
        OSError: the kernel has no such filters.
        ValueError: there are too many ports.
    """
    if len(ports) > MAX_PORTS:
        raise ValueError(f"expected at most {MAX_PORTS} connections")
    program = [
        _instruction(_LOAD_WORD, 0, 0, _SOURCE_ADDRESS),
        _instruction(_JUMP_IF_EQUAL, 1, 0, _LOOPBACK),
        _instruction(_RETURN, 0, 0, _DROP),
        _instruction(_LOAD_HALF, 0, 0, _SOURCE_PORT),
    ]
    for port in sorted(ports):
        program += [_instruction(_JUMP_IF_EQUAL, 0, 1, port), _instruction(_RETURN, 0, 0, _PASS)]
    program.append(_instruction(_RETURN, 0, 0, _DROP))
    code = ctypes.create_string_buffer(b"".join(program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code)))


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


_TCP_MD5SIG_EXT = 32
_PREFIX = 1
"""The key is for all addresses that begin as the given one; with a length of 0 bits: for all."""
_KEY_BYTES = 32
_MAX_KEY_BYTES = 80
_STORAGE_BYTES = 128


def new_key() -> bytes:
    """A secret for one listening socket."""
    return secrets.token_bytes(_KEY_BYTES)


def require_signatures(listener: socket.socket, key: bytes) -> None:
    """Have an IPv4 socket sign what it sends, and drop what is not signed with the same key.

    Connections that a listening socket has accepted before stay as they are.

    Args:
        listener: A listening socket, or one that is not connected yet.
        key: The secret.

    Raises:
        OSError: the kernel has no such signatures.
    """
    address = struct.pack("=HH4s", socket.AF_INET, 0, bytes(4)).ljust(_STORAGE_BYTES, b"\0")
    option = struct.pack("=BBHi", _PREFIX, 0, len(key), 0) + key.ljust(_MAX_KEY_BYTES, b"\0")
    listener.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, address + option)


class PeerFilter:
    """Admits the nodes of one job, and on this machine the account that the job runs as. Use from any thread."""

    def __init__(
        self,
        addresses: Callable[[], Set[str]],
        owner_of: Callable[[Endpoint, Endpoint], int | None] = connection_owner,
        user_id: int | None = None,
    ) -> None:
        """
        Args:
            addresses: Returns the IP addresses of the nodes on which the job has workers now.
            owner_of: Returns the user id of a peer on this machine.
            user_id: The account that is admitted on this machine; None: our own.
        """
        self._addresses = addresses
        self._owner_of = owner_of
        self._user_id = os.geteuid() if user_id is None else user_id

    def admits(self, peer: Endpoint, local: Endpoint) -> bool:
        """Whether a peer may connect."""
        address = plain_address(peer[0])
        if is_loopback_address(address) or address == plain_address(local[0]):
            return self._owner_of(peer[:2], local[:2]) == self._user_id
        return address in self._addresses()


@dataclass(frozen=True)
class RendezvousConfig:
    """Where a job's rendezvous listens, and which peers it admits.

    Attributes:
        address: Address of this machine as the workers see it.
        interfaces: Network interfaces by which workers reach each other.
        admits: Whether a peer may connect, given its side and ours.
        accepts_open_store: Whether torch's store may be served where the kernel keeps no other account out.
    """

    address: str
    interfaces: tuple[str, ...]
    admits: Callable[[Endpoint, Endpoint], bool]
    accepts_open_store: bool = False
