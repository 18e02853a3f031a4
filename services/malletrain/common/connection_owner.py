"""Which account has opened a TCP connection to this process from the same machine."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

Endpoint = tuple[str, int]
"""Address and port of one side of a connection."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UID_COLUMN = 7
_WORD_BYTES = 4


def connection_owner(peer: Endpoint, local: Endpoint, tables: tuple[Path, ...] = _TABLES) -> int | None:
    """The user id of whoever has opened a connection to us.

    Args:
        peer: The peer's side, as `getpeername` tells it.
        local: Our side.
        tables: The kernel's lists of connections.

    Returns:
        The user id; None if the connection is not from this machine, or has ended.
    """
    for table in tables:
        wanted = [_hexadecimal(side, wide=table.name == "tcp6") for side in (peer, local)]
        for words in _rows(table):
            if words[1:3] == wanted:
                return int(words[_UID_COLUMN])
    return None


def owners_of_peers(local: Endpoint, tables: tuple[Path, ...] = _TABLES) -> frozenset[int]:
    """The user ids of all who have opened connections to a port of this machine, from the same machine.

    Args:
        local: The side that is listened on.
        tables: The kernel's lists of connections.
    """
    return frozenset(
        int(words[_UID_COLUMN])
        for table in tables
        for words in _rows(table)
        if words[2] == _hexadecimal(local, wide=table.name == "tcp6")
    )


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return  # without IPv6 there is no such table
    yield from (line.split() for line in lines)


def plain_address(text: str) -> str:
    """An address without its zone, and as IPv4 where it is one in IPv6's form; anything else as it is."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(text: str) -> bool:
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
