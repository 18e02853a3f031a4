"""How agents, supervisors and the Scavenger speak: lines of JSON over TCP, after both sides have shown the token.

The token never travels: each side proves that it has it by a MAC over the other's random challenge and the role that it
plays, so that what one side says can't be sent back to it as its own answer.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

_LONGEST_LINE_BYTES = 4 << 20
_HANDSHAKE_SECONDS = 5.0

Message = dict[str, Any]


TOKEN_FILE = "agent-token"
"""The file of the token in the state folder of an installation."""


class WireError(Exception):
    """The other side can't be understood, or is not who it should be."""


def read_token(path: Path) -> bytes:
    """The secret of an installation.

    Raises:
        WireError: there is none, or others can read it.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_bytes().strip()
    except OSError as error:
        raise WireError(f"{path}: expected a file with the token of this installation ({error.strerror})") from error
    if mode & 0o077:
        raise WireError(f"{path}: expected a file that only its owner can read, got mode {mode & 0o777:o}")
    if len(token) < 16:
        raise WireError(f"{path}: expected at least 16 bytes")
    return token


def make_token(path: Path) -> bytes:
    """The secret of an installation, made where there is none; who comes second gets what the first has made.

    Raises:
        WireError: it can't be used.
        OSError: it can't be written.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    return read_token(path)


def challenge() -> str:
    """Something that was never seen before."""
    return secrets.token_hex(16)


def proof(token: bytes, role: str, challenged: str) -> str:
    """What only who has the token can answer to a challenge."""
    return hmac.digest(token, f"{role}:{challenged}".encode(), "sha256").hex()


def is_proof(token: bytes, role: str, challenged: str, answer: object) -> bool:
    """Whether an answer to a challenge is right."""
    return isinstance(answer, str) and hmac.compare_digest(proof(token, role, challenged), answer)


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """A message from a line.

    Raises:
        WireError: it is none.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WireError(f"expected a line of JSON, got {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise WireError(f"expected a JSON object, got {line[:80]!r}")
    return message


class Connection:
    """A blocking connection to an agent; one thread reads, any thread writes one line at a time."""

    def __init__(self, address: str, token: bytes, role: str, timeout: float = _HANDSHAKE_SECONDS) -> None:
        """Connect, and have both sides show the token.

        Args:
            address: HOST:PORT.
            token: The installation's secret.
            role: What this side is.
            timeout: For connecting and for every step of the handshake, in seconds.

        Raises:
            WireError: the other side does not have the token.
            OSError: it can't be reached.
        """
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._stream: BinaryIO = self._socket.makefile("rb")
        try:
            mine = challenge()
            self.send({"role": role, "challenge": mine})
            answer = self.read()
            if not is_proof(token, "server", mine, answer.get("proof")):
                raise WireError(f"{address}: expected a peer that has our token")
            self.send({"proof": proof(token, role, str(answer.get("challenge")))})
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(None)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: the connection is lost.
        """
        self._socket.sendall(encode(message))

    def read(self) -> Message:
        """The next message.

        Raises:
            WireError: what came is none.
            OSError: the connection is lost.
        """
        line = self._stream.readline(_LONGEST_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the other side has closed the connection")
        return decode(line)

    def close(self) -> None:
        """Close it; who reads is woken."""
        with contextlib.suppress(OSError):  # it was lost before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
