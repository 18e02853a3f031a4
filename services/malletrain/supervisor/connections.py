"""Cutting the connections between a job's workers, so that those who have lost one of them notice at once.

The kernel closes a dead worker's connections, but in a ring only its neighbours wait for it; the others would wait for
Gloo's time-out. Once the connections among the survivors are shut down, too, each fails at its next operation, which
for Horovod is the way back to the last commit.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_PIDFD_GETFD = 438
"""System call number, the same on all architectures."""
_ESTABLISHED = "01"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def cut(workers: Iterable[int]) -> int:
    """Shut down every TCP connection between two different workers on this machine; others are left alone.

    Args:
        workers: Process ids of the workers, each the leader of its session.

    Returns:
        The number of sockets that were shut down.

    Raises:
        OSError: the kernel does not let this process reach into another's sockets.
    """
    holders = _sockets(frozenset(workers))
    found = between(_connections(), {inode: session for inode, (session, _, _) in holders.items()})
    for inode in found:
        _, pid, descriptor = holders[inode]
        _shut_down(pid, descriptor, inode)
    return len(found)


def cut_off(workers: Iterable[int], head: str) -> int:
    """Shut down every TCP connection of workers on this machine to another one, except to the head node.

    Args:
        workers: As for `cut`.
        head: Address of the head node: its services are to be reached still.

    Returns:
        The number of sockets that were shut down.

    Raises:
        OSError: the kernel does not let this process reach into another's sockets.
    """
    holders = _sockets(frozenset(workers))
    spared = {found[4][0] for found in socket.getaddrinfo(head, None)}
    count = 0
    for inode, (_, remote) in _connections().items():
        address = address_of(remote)
        if inode in holders and not (address.is_loopback or str(address) in spared):
            _, pid, descriptor = holders[inode]
            _shut_down(pid, descriptor, inode)
            count += 1
    return count


def address_of(written: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address in what the kernel writes as ADDRESS:PORT: words in the machine's byte order, in hexadecimal."""
    digits = written.partition(":")[0]
    words = (int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped if mapped is not None else found


def between(connections: Mapping[int, tuple[str, str]], owners: Mapping[int, int]) -> list[int]:
    """Sockets of which both ends are owned, by two different owners. Pure.

    Args:
        connections: Inode to local and remote address of every socket.
        owners: Inode to owner.
    """
    ends = {addresses: owners[inode] for inode, addresses in connections.items() if inode in owners}
    return [
        inode
        for inode, (local, remote) in connections.items()
        if inode in owners and ends.get((remote, local), owners[inode]) != owners[inode]
    ]


def _sockets(sessions: frozenset[int]) -> dict[int, tuple[int, int, int]]:
    """Inode to session, process and descriptor of the sockets of all processes of these sessions."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            session = os.getsid(int(entry.name))
            if session not in sessions:
                continue
            for link in (entry / "fd").iterdir():
                target = link.readlink().name
                if target.startswith("socket:["):
                    found[int(target[8:-1])] = (session, int(entry.name), int(link.name))
    return found


def _connections() -> dict[int, tuple[str, str]]:
    """Inode to local and remote address, as the kernel writes them, of all established TCP connections."""
    found = {}
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), Path(table).open(encoding="ascii") as lines:
            next(lines)
            for line in lines:
                words = line.split()
                if words[3] == _ESTABLISHED:
                    found[int(words[9])] = (words[1], words[2])
    return found


def _shut_down(pid: int, descriptor: int, inode: int) -> None:
    copy = _copy(pid, descriptor)
    if copy is None:
        return
    if os.fstat(copy).st_ino != inode:  # closed in the meantime, and the number taken by another file
        os.close(copy)
        return
    with socket.socket(fileno=copy) as connection, contextlib.suppress(OSError):  # its other end may be shut already
        connection.shutdown(socket.SHUT_RDWR)


def _copy(pid: int, descriptor: int) -> int | None:
    """A descriptor of this process for another's file; None where that has just been closed.

    Raises:
        OSError: the kernel does not allow it.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        copy: int = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
        number = ctypes.get_errno()
    finally:
        os.close(process)
    if copy >= 0:
        return copy
    if number in (errno.EBADF, errno.ESRCH):
        return None
    raise OSError(number, os.strerror(number))
