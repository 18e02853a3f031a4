"""Which connections to a port are too many of one peer. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from typing import NamedTuple


class Connection(NamedTuple):
    """A connection to our port.

    Attributes:
        inode: By which the kernel knows our side of it; larger ones are of later connections, nearly always.
        address: The peer's address.
        owner: The peer's account; None if it is on another machine.
    """

    inode: int
    address: str
    owner: int | None


def surplus(connections: Iterable[Connection], most: int, exempt: Set[int]) -> list[Connection]:
    """The newest connections of those peers that have more than they may.

    Args:
        connections: All connections to our port.
        most: How many one peer may have.
        exempt: Accounts of this machine that may have any number.
    """
    of_peer: defaultdict[int | str, list[Connection]] = defaultdict(list)
    for connection in connections:
        if connection.owner not in exempt:
            of_peer[connection.address if connection.owner is None else connection.owner].append(connection)
    return [extra for found in of_peer.values() for extra in sorted(found)[most:]]
