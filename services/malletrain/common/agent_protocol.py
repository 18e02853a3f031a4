"""The protocol between agents, supervisors, the Scavenger and Monitor's proxy: lines of JSON over TCP.

A connection begins with a handshake in which both sides prove that they know the installation's token. The token itself
is not sent: each side answers the other's random challenge with an HMAC over the challenge and its own role. Since the
roles differ, neither side can be made to compute the answer that is expected of the other.

The asyncio side of the protocol is in `malletrain.common.agent_streams`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO

LONGEST_LINE_BYTES = 4 << 20
"""Longest message that is accepted."""
HANDSHAKE_SECONDS = 5.0
"""Time limit of connecting and of the handshake."""

Message = dict[str, Any]


class AgentProtocolError(Exception):
    """The other side sends something that is not a message of the protocol, or it does not know the token."""


def challenge() -> str:
    """A new random challenge."""
    return secrets.token_hex(16)


def proof(token: bytes, role: str, challenged: str) -> str:
    """The answer to a challenge.

    Args:
        token: The installation's secret.
        role: Role of the side that answers.
        challenged: The challenge.
    """
    return hmac.digest(token, f"{role}:{challenged}".encode(), "sha256").hex()


def is_proof(token: bytes, role: str, challenged: str, answer: object) -> bool:
    """Whether an answer to a challenge is right; see `proof` for the arguments."""
    return isinstance(answer, str) and hmac.compare_digest(proof(token, role, challenged), answer)


def encode(message: Mapping[str, Any]) -> bytes:
    """Serialize a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Parse a line.

    Raises:
        AgentProtocolError: it is not a JSON object.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise AgentProtocolError(f"expected a line of JSON, got {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise AgentProtocolError(f"expected a JSON object, got {line[:80]!r}")
    return message


class AgentConnection:
    """A blocking connection to an agent. One thread may read while another one writes."""

    def __init__(self, address: str, token: bytes, role: str, timeout: float = HANDSHAKE_SECONDS) -> None:
        """Connect and do the handshake.

        Args:
            address: HOST:PORT.
            token: The installation's secret.
            role: Role of this side.
            timeout: Time limit in seconds, for connecting and for each step of the handshake.

        Raises:
            AgentProtocolError: the other side does not know the token.
            OSError: it can't be reached, or does not answer in time.
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
                raise AgentProtocolError(f"{address}: expected a peer that has our token")
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
        """Wait for the next message.

        Raises:
            AgentProtocolError: what came is not a message.
            OSError: the connection is lost.
        """
        line = self._stream.readline(LONGEST_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the other side has closed the connection")
        return decode(line)

    def close(self) -> None:
        """Close the connection; a thread that waits in `read` gets an error."""
        with contextlib.suppress(OSError):  # it was lost before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
