"""Closes connections that are too many of one peer. gRPC accepts whoever comes, and knows no peers.

The connections to a port of this process are listed by the kernel (sock_diag(7)).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ctypes.util
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from pathlib import Path
from typing import NamedTuple

import structlog

from malletrain.common.connection_owner import plain_address
from malletrain.common.tasks import lasting
from malletrain.runtime.admission.peers import PeerNames

_MEMORY_LOOK_SECONDS = 2.0
_GROWTH_BYTES = 16 * 1024 * 1024
_LOOKS_AFTER_GROWTH = 15
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory that this process has now, in bytes."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load_trim() -> Callable[[], None]:
    """What gives freed memory back: malloc_trim(3) of glibc; nothing where the C library is another one."""
    library = ctypes.CDLL(None)
    trim = getattr(library, "malloc_trim", None)
    if trim is None:
        return lambda: None
    return lambda: trim(0)


class MemoryReturn:
    """Looks at what the process has, and has freed memory given back when that has grown."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] | None = None) -> None:
        """Nothing happens before `run`.

        Args:
            resident: Memory of this process in bytes.
            trim: Gives back what is free.
        """
        self._resident = resident
        self._trim = trim or load_trim()
        self._after_last = 0
        self._looks_left = 0

    async def run(self) -> None:
        """Look every two seconds, until cancelled."""
        self._after_last = self._resident()
        while True:
            await asyncio.sleep(_MEMORY_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Give memory back if there is more of it, or there was shortly before: calls that hold some end later."""
        present = self._resident()
        if present >= self._after_last + _GROWTH_BYTES:
            self._looks_left = _LOOKS_AFTER_GROWTH
        elif not self._looks_left:
            self._after_last = min(self._after_last, present)
            return
        self._looks_left -= 1
        await asyncio.to_thread(self._trim)
        self._after_last = self._resident()


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


def surplus(connections: Iterable[Connection], max_per_peer: int, exempt: Set[int]) -> list[Connection]:
    """The newest connections of those peers that have more than they may.

    Args:
        connections: All connections to our port.
        max_per_peer: How many one peer may have.
        exempt: Accounts of this machine that may have any number.
    """
    of_peer: defaultdict[int | str, list[Connection]] = defaultdict(list)
    for connection in connections:
        if connection.owner not in exempt:
            of_peer[connection.address if connection.owner is None else connection.owner].append(connection)
    return [extra for of_one in of_peer.values() for extra in sorted(of_one)[max_per_peer:]]


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_REQUEST_AND_DUMP = 0x301
_ESTABLISHED = 1 << 1
_HEADER = struct.Struct("=IHHII")
_BUFFER = 1 << 16
_ANSWER_SECONDS = 2.0
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_OWN_FILES = Path("/proc/self/fd")


class _Socket(NamedTuple):
    local: tuple[str, int]
    remote: tuple[str, int]
    user_id: int
    inode: int


def connections_to(port: int) -> list[Connection]:
    """The connections to a port on which this process listens.

    Raises:
        OSError: the kernel does not tell.
    """
    # gRPC listens by IPv6, also on an IPv4 address: the two sides of a connection may be listed in different tables.
    theirs = {
        (one.local, one.remote): one.user_id for family in _FAMILIES for one in _list_sockets(family, remote_port=port)
    }
    return [
        Connection(ours.inode, ours.remote[0], theirs.get((ours.remote, ours.local)))
        for family in _FAMILIES
        for ours in _list_sockets(family, local_port=port)
    ]


def open_files() -> int:
    """How many files this process has open."""
    return sum(1 for _ in _OWN_FILES.iterdir())


def close_own(inodes: Collection[int]) -> int:
    """Shut down sockets of this process; whoever reads or writes them finds them closed.

    Args:
        inodes: By which the kernel knows them.

    Returns:
        How many there were.
    """
    wanted, closed = {f"socket:[{inode}]" for inode in inodes}, 0
    for file in _OWN_FILES.iterdir():
        with contextlib.suppress(OSError):
            if str(file.readlink()) not in wanted:
                continue
            # The number may have become another file's meanwhile; a copy of it stays what it is.
            with socket.socket(fileno=os.dup(int(file.name))) as copy:
                if f"socket:[{os.fstat(copy.fileno()).st_ino}]" in wanted:
                    copy.shutdown(socket.SHUT_RDWR)
                    closed += 1
    return closed


def _list_sockets(family: socket.AddressFamily, local_port: int = 0, remote_port: int = 0) -> Iterator[_Socket]:
    """Established connections with a local or a remote port.

    Raises:
        OSError: the kernel does not tell.
    """
    identity = struct.pack("!HH", local_port, remote_port) + bytes(32) + struct.pack("=III", 0, 0, 0)
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ESTABLISHED) + identity
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
        diag.settimeout(_ANSWER_SECONDS)
        diag.send(header + body)
        while True:
            answer, begin = diag.recv(_BUFFER), 0
            while begin < len(answer):
                length, kind, *_ = _HEADER.unpack_from(answer, begin)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", answer, begin + _HEADER.size)[0]
                    raise OSError(code, os.strerror(code))
                yield _socket(answer, begin + _HEADER.size)
                begin += (length + 3) & ~3


def _socket(answer: bytes, begin: int) -> _Socket:
    """One `inet_diag_msg`."""
    family = answer[begin]
    local_port, remote_port = struct.unpack_from("!HH", answer, begin + 4)
    size = 4 if family == socket.AF_INET else 16
    local = plain_address(socket.inet_ntop(family, answer[begin + 8 : begin + 8 + size]))
    remote = plain_address(socket.inet_ntop(family, answer[begin + 24 : begin + 24 + size]))
    user_id, inode = struct.unpack_from("=II", answer, begin + 64)
    return _Socket((local, local_port), (remote, remote_port), user_id, inode)


_LOOK_SECONDS = 1.0
_ROOT = 0


class ConnectionLimiter:
    """Looks at the connections of a server once a second, where there are many files open.

    Attributes:
        further_ports: Ports on which the server listens, too.
    """

    def __init__(self, peers: PeerNames, max_per_peer: int) -> None:
        """Nothing happens before `run`.

        Args:
            peers: Knows the port.
            max_per_peer: Connections that one peer may have. The services' own account and root may have any number:
                who has these can do worse.
        """
        self._peers = peers
        self.further_ports: list[int] = []
        self._max_per_peer = max_per_peer
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
            if open_files() > self._max_per_peer:
                await asyncio.to_thread(self.look)

    def look(self) -> int:
        """Close what is too much; returns how many connections were closed."""
        try:
            ports = (self._peers.port, *self.further_ports)
            connections = (connection for port in ports for connection in connections_to(port))
            extra = surplus(connections, self._max_per_peer, self._exempt)
            closed = close_own([connection.inode for connection in extra]) if extra else 0
        except OSError as error:
            self._log.warning("connections can't be counted", error=str(error))
            return 0
        if closed:
            whose = sorted({each.address if each.owner is None else f"uid {each.owner}" for each in extra})
            self._log.warning("connections closed: too many of one peer", closed=closed, peers=whose[:10])
        return closed
