"""Frames between the feeds of two nodes: over TLS, on a socket that does not block.

The feed has one thread, since it forks the processes that prepare samples: a library with threads of its own, such as
gRPC, would leave its locks in them.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from malletrain.client.feeding.errors import FeedError
from malletrain.tls.files import read_certificate_file

_LENGTH = struct.Struct("<I")
_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def tls_context(certificate: Path, *, server_side: bool) -> ssl.SSLContext:
    """How a feed proves who it is, and what it asks for of others: a certificate of the installation's own CA.

    Args:
        certificate: Private key, certificate and that of the CA, in PEM. It is replaced while it is in use.
        server_side: Whether others connect.

    Raises:
        CertificateFileError: the file can't be used.
        ssl.SSLError: its parts do not belong together.
    """
    certificate_file = read_certificate_file(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate)
    context.load_verify_locations(cadata=certificate_file.authority.decode("ascii"))
    return context


class PeerStream:
    """A connection to another feed, connected already.

    Attributes:
        is_open: Whether both sides have proved who they are.
        socket: The socket, for a selector.
    """

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, name: str, max_frame_bytes: int, *, server_side: bool
    ) -> None:
        """Send nothing yet.

        Args:
            connection: A TCP connection. It is closed with the stream.
            context: See `tls_context`.
            name: DNS name of all feeds of the fleet. Whoever has no certificate for it is refused.
            max_frame_bytes: Bytes of the longest frame that is received.
            server_side: Whether the other side has connected.

        Raises:
            OSError: the connection has gone.
        """
        connection.setblocking(False)
        self.socket = context.wrap_socket(
            connection,
            server_side=server_side,
            do_handshake_on_connect=False,
            server_hostname=None if server_side else name,
        )
        self._name, self._max_frame_bytes = name, max_frame_bytes
        self.is_open = False
        self._wants = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._unsent: deque[memoryview] = deque()
        self._buffer = bytearray(_LENGTH.size)
        self._filled = 0
        self._in_head = True

    @property
    def events(self) -> int:
        """What to wait for before the next `step`."""
        if not self.is_open:
            return self._wants
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    @property
    def is_idle(self) -> bool:
        """Whether all that was sent has left."""
        return not self._unsent

    def send(self, *parts: bytes) -> None:
        """Send a frame, made of parts, as soon as the other side takes it."""
        self._unsent.append(memoryview(_LENGTH.pack(sum(map(len, parts)))))
        self._unsent += [memoryview(part) for part in parts if part]

    def step(self) -> Iterator[bytes]:
        """Do what is possible without waiting. What the other side has sent, one frame after the other.

        Raises:
            EOFError: it has ended.
            OSError: it has gone, or is not who it should be.
            FeedError: it has sent a frame that is too long.
        """
        if not self.is_open and not self._shake_hands():
            return
        self.flush()
        yield from self._receive()
        self.flush()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def _shake_hands(self) -> bool:
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._wants = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self._wants = selectors.EVENT_WRITE
            return False
        shown = self.socket.getpeercert() or {}
        names = shown.get("subjectAltName", ())
        if ("DNS", self._name) not in [tuple(each) for each in names if isinstance(each, tuple)]:
            raise FeedError(f"certificate: expected one for {self._name}, got one for {names!r}"[:500])
        self.is_open = True
        return True

    def flush(self) -> None:
        """Send what the other side takes now.

        Raises:
            OSError: it has gone.
        """
        while self._unsent:
            try:
                sent = self.socket.send(self._unsent[0])
            except _WAITS:
                return
            left = self._unsent[0][sent:]
            if left:
                self._unsent[0] = left
            else:
                self._unsent.popleft()

    def _receive(self) -> Iterator[bytes]:
        while True:
            if self._filled < len(self._buffer):
                try:
                    got = self.socket.recv_into(memoryview(self._buffer)[self._filled :])
                except _WAITS:
                    return
                if not got:
                    raise EOFError
                self._filled += got
                if self._filled < len(self._buffer):
                    continue
            content, self._filled = self._buffer, 0
            if self._in_head:
                (length,) = _LENGTH.unpack(content)
                if not 0 < length <= self._max_frame_bytes:
                    raise FeedError(f"frame: expected 1 to {self._max_frame_bytes} bytes, got {length}")
                self._buffer, self._in_head = bytearray(length), False
            else:
                self._buffer, self._in_head = bytearray(_LENGTH.size), True
                yield bytes(content)
