"""A packet filter on a listening socket: only connections from ports that we hold ourselves come through.

Any process on a machine can connect to what listens on loopback. A classic BPF program, which the kernel runs on each
packet for the socket and for those that it accepts, needs no privileges and keeps others out (socket(7),
SO_ATTACH_FILTER).
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Collection

MOST_PORTS = 2000
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
        ports: Ports of sockets of our own, at most `MOST_PORTS`.

    Raises:
        OSError: the kernel has no such filters.
        ValueError: there are too many ports.
    """
    if len(ports) > MOST_PORTS:
        raise ValueError(f"expected at most {MOST_PORTS} connections")
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
