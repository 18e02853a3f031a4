"""A client that speaks just enough HTTP/2 to do what gRPC's own clients never do: stop in the middle of a message."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_HEADERS, _END_STREAM = 1, 4, 1
_HEADER_BYTES = 9
_FRAME_BYTES = 16_384
_FIRST_WINDOW = 65_535
_INITIAL_WINDOW_SIZE = 4
_MAX_LITERAL_LENGTH = 127
_WAIT_SECONDS = 0.2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field that is in no table (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    raw, length = text.encode(), b""
    rest = len(raw)
    if rest < _MAX_LITERAL_LENGTH:
        return bytes([rest]) + raw
    rest -= _MAX_LITERAL_LENGTH
    while rest >= 0x80:
        length += bytes([rest % 0x80 + 0x80])
        rest //= 0x80
    return bytes([_MAX_LITERAL_LENGTH]) + length + bytes([rest]) + raw


class TlsSocket:
    """A connection with TLS, to whoever it is, on which one thread may read while another writes."""

    def __init__(self, plain: socket.socket) -> None:
        """Greet."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self._socket = context.wrap_socket(plain)
        self._socket.setblocking(False)
        self._lock = threading.Lock()

    def sendall(self, data: bytes) -> None:
        """Send bytes; raises OSError once the connection is over."""
        rest = memoryview(data)
        while rest:
            try:
                with self._lock:
                    rest = rest[self._socket.send(rest) :]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                select.select([], [self._socket], [], _WAIT_SECONDS)

    def read(self, size: int) -> bytes:
        """So many bytes; fewer where the connection ends."""
        got = b""
        while len(got) < size:
            try:
                with self._lock:
                    more = self._socket.recv(size - len(got))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([self._socket], [], [], _WAIT_SECONDS)
                continue
            if not more:
                break
            got += more
        return got

    def close(self) -> None:
        """Hang up."""
        with self._lock, contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()


class RawConnection:
    """One connection. A thread reads what the server says and keeps count of the windows that it grants."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        """Connect and greet.

        Args:
            port: Port on loopback.
            source: Address from which it connects.
        """
        plain = socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))
        self._socket = TlsSocket(plain)
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._window = _FIRST_WINDOW
        self._initial = _FIRST_WINDOW
        self._windows: dict[int, int] = {}
        self._ended: set[int] = set()
        self._answered: set[int] = set()
        self.closed = False
        self._next = 1
        self._send(PREFACE + frame(_SETTINGS, 0, 0) + frame(_WINDOW_UPDATE, 0, 0, struct.pack("!I", 1 << 30)))
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, path: str, token: str = "") -> int:
        """Begin a call; returns its stream."""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
        fields["content-type"] = "application/grpc"
        if token:
            fields["authorization"] = f"Bearer {token}"
        block = b"".join(_literal(name, value) for name, value in fields.items())
        with self._changed:
            stream, self._next = self._next, self._next + 2
            self._windows[stream] = self._initial
        self._send(frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, data: bytes, timeout: float = 10.0) -> int:
        """Send bytes of a message as the server's windows permit.

        Returns:
            How many were sent until the call or the connection ended, or no window was granted for `timeout` seconds.
        """
        sent = 0
        while sent < len(data):
            with self._changed:
                ready = self._changed.wait_for(lambda: self._over(stream) or self._granted(stream) > 0, timeout)
                if not ready or self._over(stream):
                    return sent
                size = min(self._granted(stream), _FRAME_BYTES, len(data) - sent)
                self._window -= size
                self._windows[stream] -= size
            if not self._send(frame(_DATA, 0, stream, data[sent : sent + size])):
                return sent
            sent += size
        return sent

    def end(self, stream: int) -> None:
        """End our side of a call."""
        self._send(frame(_DATA, _END_STREAM, stream))

    def wait_ended(self, stream: int, timeout: float = 10.0) -> bool:
        """Whether the server has ended a call, or the connection, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._over(stream), timeout)

    def wait_answered(self, streams: Iterable[int], timeout: float = 30.0) -> bool:
        """Whether the server has begun to answer calls, or refused them, within `timeout` seconds."""
        wanted = set(streams)
        with self._changed:
            return self._changed.wait_for(lambda: self.closed or wanted <= self._answered, timeout)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _over(self, stream: int) -> bool:
        return self.closed or stream in self._ended

    def _granted(self, stream: int) -> int:
        return min(self._window, self._windows[stream])

    def _send(self, data: bytes) -> bool:
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError:
            return False
        return True

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed while it was waited for
            while len(header := self._socket.read(_HEADER_BYTES)) == _HEADER_BYTES:
                payload = self._socket.read(int.from_bytes(header[:3], "big"))
                self._take(header[3], header[4], int.from_bytes(header[5:], "big") & 0x7FFFFFFF, payload)
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _PING and not flags & _ACK:
            self._send(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            self._send(frame(_SETTINGS, _ACK, 0))
        with self._changed:
            if kind == _WINDOW_UPDATE:
                grown = int.from_bytes(payload, "big")
                if stream:
                    self._windows[stream] = self._windows.get(stream, self._initial) + grown
                else:
                    self._window += grown
            elif kind == _SETTINGS and not flags & _ACK:
                self._settle(payload)
            elif kind in (_RST_STREAM, _HEADERS):
                self._answered.add(stream)
                if kind == _RST_STREAM or flags & _END_STREAM:
                    self._ended.add(stream)
            self._changed.notify_all()

    def _settle(self, payload: bytes) -> None:
        for begin in range(0, len(payload), 6):
            name, value = struct.unpack_from("!HI", payload, begin)
            if name == _INITIAL_WINDOW_SIZE:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value


def message_head(length: int) -> bytes:
    """What stands before a message of so many bytes."""
    return b"\0" + struct.pack("!I", length)
