"""Closes connections that are too many of one peer. gRPC accepts whoever comes, and knows no peers."""

from __future__ import annotations

import asyncio
import os

import structlog

from malletrain.common.tasks import lasting
from malletrain.runtime.admission.memory import MemoryReturn
from malletrain.runtime.admission.peers import PeerNames
from malletrain.runtime.admission.socket_table import close_own, connections_to, open_files
from malletrain.runtime.admission.surplus import surplus

_LOOK_SECONDS = 1.0
_ROOT = 0


class ConnectionLimiter:
    """Looks at the connections of a server once a second, where there are many files open.

    Attributes:
        further_ports: Ports on which the server listens, too.
    """

    def __init__(self, peers: PeerNames, most: int) -> None:
        """Look at nothing yet.

        Args:
            peers: Knows the port.
            most: Connections that one peer may have. The services' own account and root may have any number: who has
                these can do worse.
        """
        self._peers = peers
        self.further_ports: list[int] = []
        self._most = most
        self._exempt = frozenset({_ROOT, os.geteuid()})
        self._memory = MemoryReturn()
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Look until cancelled; and give back the memory that calls have taken."""
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting(self._memory.run(), "return of memory"))
            group.create_task(lasting(self.watch(), "watch over connections"))

    async def watch(self) -> None:
        """Look until cancelled, where another limiter of this process gives back the memory."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if open_files() > self._most:
                await asyncio.to_thread(self.look)

    def look(self) -> int:
        """Close what is too much; returns how many connections were closed."""
        try:
            ports = (self._peers.port, *self.further_ports)
            connections = (connection for port in ports for connection in connections_to(port))
            found = surplus(connections, self._most, self._exempt)
            closed = close_own([connection.inode for connection in found]) if found else 0
        except OSError as error:
            self._log.warning("connections can't be counted", error=str(error))
            return 0
        if closed:
            whose = sorted({_name(connection.owner, connection.address) for connection in found})
            self._log.warning("connections closed: too many of one peer", closed=closed, peers=whose[:10])
        return closed


def _name(owner: int | None, address: str) -> str:
    return address if owner is None else f"uid {owner}"
