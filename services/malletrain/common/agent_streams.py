"""The protocol of `malletrain.common.agent_protocol` for asyncio."""

from __future__ import annotations

import asyncio

from malletrain.common.agent_protocol import (
    HANDSHAKE_SECONDS,
    LONGEST_LINE_BYTES,
    AgentProtocolError,
    Message,
    challenge,
    decode,
    encode,
    is_proof,
    proof,
)

_CHUNK_BYTES = 64 << 10


class AgentStream:
    """A connection to a peer that knows the token.

    Attributes:
        role: Role of the peer.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, role: str) -> None:
        self._reader = reader
        self._writer = writer
        self.role = role

    def send(self, message: Message) -> None:
        """Queue a message for sending. Does nothing if the connection is lost."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def read(self) -> Message | None:
        """Wait for the next message; None if the connection is lost.

        Raises:
            AgentProtocolError: what came is not a message.
        """
        try:
            line = await self._reader.readline()
        except ValueError as error:
            raise AgentProtocolError(f"expected a line of at most {LONGEST_LINE_BYTES} bytes") from error
        except OSError:
            return None
        return decode(line) if line.endswith(b"\n") else None

    async def drain(self) -> None:
        """Wait until the queued messages have been handed to the kernel."""
        try:
            await self._writer.drain()
        except OSError:
            return  # `read` reports the loss

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward bytes between this connection and another one, in both directions, until both have ended."""
        try:
            await asyncio.gather(_copy(self._reader, writer), _copy(reader, self._writer))
        finally:
            writer.close()
            self.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()  # ends the other direction, too


async def accept_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> AgentStream:
    """Do the server's part of the handshake.

    Raises:
        AgentProtocolError: the client does not know the token.
        TimeoutError: it does not answer in time.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        hello = decode(await reader.readline())
        role, mine = str(hello.get("role")), challenge()
        writer.write(encode({"proof": proof(token, "server", str(hello.get("challenge"))), "challenge": mine}))
        answer = decode(await reader.readline())
        if not is_proof(token, role, mine, answer.get("proof")):
            raise AgentProtocolError("expected a peer that has our token")
    return AgentStream(reader, writer, role)


async def open_stream(host: str, port: int, token: bytes, role: str) -> AgentStream:
    """Connect and do the client's part of the handshake.

    Raises:
        AgentProtocolError: the server does not know the token.
        OSError: it can't be reached.
        TimeoutError: it does not answer in time.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE_BYTES)
        try:
            mine = challenge()
            writer.write(encode({"role": role, "challenge": mine}))
            answer = decode(await reader.readline())
            if not is_proof(token, "server", mine, answer.get("proof")):
                raise AgentProtocolError(f"{host}:{port}: expected a peer that has our token")
            writer.write(encode({"proof": proof(token, role, str(answer.get("challenge")))}))
        except BaseException:
            writer.close()
            raise
    return AgentStream(reader, writer, "server")
