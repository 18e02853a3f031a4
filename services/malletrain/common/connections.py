"""Shuts down TCP connections between the workers of a job, so that all of them notice the loss of one at once.

The kernel closes the connections of a worker that has died. In a ring only its two neighbours notice that: the others
would wait for Gloo's time-out. If the connections among the survivors are shut down, too, each survivor gets an error
at its next operation. Horovod then goes back to the last commit.
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

from malletrain.common.processes import process_ids, read_descriptors

_PIDFD_GETFD = 438
"""System call number, the same on all architectures."""
_ESTABLISHED = "01"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def cut(workers: Iterable[int]) -> int:
    """Shut down each TCP connection between two different workers on this machine, and no other connection.

    Args:
        workers: Process ids of the workers. Each is the leader of its session.

    Returns:
        The number of sockets that were shut down.

    Raises:
        OSError: the kernel does not allow this process to access sockets of another one.
    """
    holders = _sockets(frozenset(workers))
    inodes = between(_connections(), {inode: session for inode, (session, _, _) in holders.items()})
    for inode in inodes:
        _, pid, descriptor = holders[inode]
        _shut_down(pid, descriptor, inode)
    return len(inodes)


def cut_remote(workers: Iterable[int], head: str) -> int:
    """Shut down each TCP connection from workers on this machine to other machines, except to the head node.

    Args:
        workers: As for `cut`.
        head: Address of the head node, whose services the workers still need.

    Returns:
        The number of sockets that were shut down.

    Raises:
        OSError: the kernel does not allow this process to access sockets of another one.
    """
    holders = _sockets(frozenset(workers))
    spared = {info[4][0] for info in socket.getaddrinfo(head, None)}
    count = 0
    for inode, (_, remote) in _connections().items():
        address = address_of(remote)
        if inode in holders and not (address.is_loopback or str(address) in spared):
            _, pid, descriptor = holders[inode]
            _shut_down(pid, descriptor, inode)
            count += 1
    return count


def address_of(written: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse ADDRESS:PORT of /proc/net/tcp: the address is in hexadecimal words, in the machine's byte order."""
    digits = written.partition(":")[0]
    words = (int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def between(connections: Mapping[int, tuple[str, str]], owners: Mapping[int, int]) -> list[int]:
    """Inodes of the sockets whose two ends have two different owners. Pure.

    Args:
        connections: Local and remote address of each socket, by inode.
        owners: Owners of sockets, by inode.
    """
    ends = {addresses: owners[inode] for inode, addresses in connections.items() if inode in owners}
    return [
        inode
        for inode, (local, remote) in connections.items()
        if inode in owners and ends.get((remote, local), owners[inode]) != owners[inode]
    ]


def _sockets(sessions: frozenset[int]) -> dict[int, tuple[int, int, int]]:
    """Sockets of all processes of these sessions: session, process id and descriptor, by inode."""
    sockets = {}
    for pid in process_ids():
        try:
            session = os.getsid(pid)
        except OSError:
            continue  # it has just ended
        if session not in sessions:
            continue
        for descriptor, target in read_descriptors(pid):
            if target.startswith("socket:["):
                sockets[int(target[8:-1])] = (session, pid, descriptor)
    return sockets


def _connections() -> dict[int, tuple[str, str]]:
    """All established TCP connections: local and remote address as the kernel writes them, by inode."""
    connections = {}
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), Path(table).open(encoding="ascii") as lines:
            next(lines)
            for line in lines:
                words = line.split()
                if words[3] == _ESTABLISHED:
                    connections[int(words[9])] = (words[1], words[2])
    return connections


def _shut_down(pid: int, descriptor: int, inode: int) -> None:
    copy = _copy(pid, descriptor)
    if copy is None:
        return
    if os.fstat(copy).st_ino != inode:  # it was closed, and the descriptor is another file now
        os.close(copy)
        return
    with socket.socket(fileno=copy) as connection, contextlib.suppress(OSError):  # its other end may be shut already
        connection.shutdown(socket.SHUT_RDWR)


def _copy(pid: int, descriptor: int) -> int | None:
    """Duplicate a descriptor of another process; None if it has just been closed.

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
