"""The connections to a port of this process, as the kernel lists them (sock_diag(7)), and how to close one of them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from malletrain.common.connection_owner import plain_address
from malletrain.runtime.admission.surplus import Connection

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
    theirs = {(one.local, one.remote): one.user_id for family in _FAMILIES for one in _listed(family, remote_port=port)}
    return [
        Connection(ours.inode, ours.remote[0], theirs.get((ours.remote, ours.local)))
        for family in _FAMILIES
        for ours in _listed(family, local_port=port)
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


def _listed(family: socket.AddressFamily, local_port: int = 0, remote_port: int = 0) -> Iterator[_Socket]:
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
