"""Which account has opened a TCP connection to this process from the same machine."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

Endpoint = tuple[str, int]
"""Address and port of one side of a connection."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_STATE_COLUMN, _UID_COLUMN = 3, 7
_MAX_ROWS = 2**20
"""Rows of a list that are read; more connections than that are not looked at."""
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _REQUEST, _ERROR = 20, 1, 2
_HEADER_BYTES, _ADDRESS_BYTES, _UID_OFFSET, _MAX_ANSWER = 16, 16, 64, 8192
_NO_COOKIE = (0xFFFFFFFF, 0xFFFFFFFF)
_ALL_STATES = 0xFFFFFFFF
_OVER = (6, 7, 10, 12)
"""TIME_WAIT, CLOSE, LISTEN and NEW_SYN_RECV: nobody's connection, or somebody else's."""
_ANSWER_SECONDS = 1.0
_WORD_BYTES = 4


def connection_owner(peer: Endpoint, local: Endpoint) -> int | None:
    """The user id of whoever has opened a connection to us.

    Args:
        peer: The peer's side, as `getpeername` tells it.
        local: Our side.

    Returns:
        The user id; None if the connection is not from this machine, or has ended.
    """
    try:
        return _asked_for_owner(peer, local)
    except OSError:  # a kernel without this interface
        return listed_owner(peer, local)


def listed_owner(peer: Endpoint, local: Endpoint, tables: tuple[Path, ...] = _TABLES) -> int | None:
    """As `connection_owner`, from the kernel's lists of connections, which take long where there are thousands."""
    for table in tables:
        wanted = [_hexadecimal(side, wide=table.name == "tcp6") for side in (peer, local)]
        for words in _rows(table):
            if words[1:3] == wanted and int(words[_STATE_COLUMN], 16) not in _OVER:
                return int(words[_UID_COLUMN])
    return None


def owners_of_peers(local: Endpoint, tables: tuple[Path, ...] = _TABLES) -> frozenset[int]:
    """The user ids of all who have opened connections to a port of this machine, from the same machine."""
    return frozenset(
        int(words[_UID_COLUMN])
        for table in tables
        for words in _rows(table)
        if words[2] == _hexadecimal(local, wide=table.name == "tcp6")
    )


def _asked_for_owner(peer: Endpoint, local: Endpoint) -> int | None:
    """Ask the kernel for one connection (sock_diag(7)).

    Raises:
        OSError: it does not answer such questions.
    """
    try:
        addresses = [ipaddress.ip_address(plain_address(side[0])) for side in (peer, local)]
    except ValueError:
        return None
    family = socket.AF_INET if addresses[0].version == 4 else socket.AF_INET6
    if addresses[0].version != addresses[1].version:
        return None
    packed = [address.packed.ljust(_ADDRESS_BYTES, b"\0") for address in addresses]
    identity = struct.pack("!HH", peer[1], local[1]) + b"".join(packed) + struct.pack("=III", 0, *_NO_COOKIE)
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ALL_STATES) + identity
    header = struct.pack("=IHHII", _HEADER_BYTES + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
        diag.settimeout(_ANSWER_SECONDS)
        diag.send(header + request)
        answer = diag.recv(_MAX_ANSWER)
    kind = struct.unpack_from("=H", answer, 4)[0]
    if kind == _ERROR:
        code = -struct.unpack_from("=i", answer, _HEADER_BYTES)[0]
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    state = answer[_HEADER_BYTES + 1]
    return None if state in _OVER else int(struct.unpack_from("=I", answer, _HEADER_BYTES + _UID_OFFSET)[0])


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        lines = table.open(encoding="ascii")
    except OSError:
        return  # without IPv6 there is no such table
    with lines:
        yield from (line.split() for line in itertools.islice(lines, 1, _MAX_ROWS))


def plain_address(text: str) -> str:
    """An address without its zone, and as IPv4 where it is one in IPv6's form; anything else as it is."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback_address(text: str) -> bool:
    """Whether an address is one of the loopback interface."""
    try:
        return ipaddress.ip_address(plain_address(text)).is_loopback
    except ValueError:
        return False


def _hexadecimal(side: Endpoint, *, wide: bool) -> str | None:
    """One side as the kernel lists it: words of four bytes in the order of this machine, then the port."""
    try:
        address = ipaddress.ip_address(plain_address(side[0]))
    except ValueError:
        return None
    if wide and isinstance(address, ipaddress.IPv4Address):
        address = ipaddress.IPv6Address(f"::ffff:{address}")
    if wide != isinstance(address, ipaddress.IPv6Address):
        return None
    raw = address.packed
    words = (raw[index : index + _WORD_BYTES] for index in range(0, len(raw), _WORD_BYTES))
    ordered = "".join(int.from_bytes(word, sys.byteorder).to_bytes(_WORD_BYTES, "big").hex() for word in words)
    return f"{ordered.upper()}:{side[1]:04X}"
