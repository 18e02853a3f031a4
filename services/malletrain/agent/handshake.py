"""The handshake of `wire` for asyncio."""

from __future__ import annotations

import asyncio

from malletrain.agent.wire import Message, WireError, challenge, decode, encode, is_proof, proof

_SECONDS = 5.0
LONGEST_LINE_BYTES = 4 << 20
_PIECE_BYTES = 64 << 10


class Peer:
    """The other side of a connection that has shown the token.

    Attributes:
        role: What it is.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, role: str) -> None:
        self._reader = reader
        self._writer = writer
        self.role = role

    def send(self, message: Message) -> None:
        """Send a message, soon; nothing happens where the connection is lost."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def read(self) -> Message | None:
        """The next message; None once the connection is lost.

        Raises:
            WireError: what came is no message.
        """
        try:
            line = await self._reader.readline()
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError):
                raise WireError(f"expected a line of at most {LONGEST_LINE_BYTES} bytes") from error
            return None
        return decode(line) if line.endswith(b"\n") else None

    async def drain(self) -> None:
        """Wait until what was sent is on its way."""
        try:
            await self._writer.drain()
        except OSError:
            return  # who reads will notice

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From now on pass on what comes, both ways, as it is; returns once both sides have ended."""
        try:
            await asyncio.gather(_pass_on(self._reader, writer), _pass_on(reader, self._writer))
        finally:
            writer.close()
            self.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()  # a side is lost, and with it both directions


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> Peer:
    """Take in whoever has connected, if it has the token.

    Raises:
        WireError: it has not.
        TimeoutError: it is silent.
    """
    async with asyncio.timeout(_SECONDS):
        hello = decode(await reader.readline())
        role, mine = str(hello.get("role")), challenge()
        writer.write(encode({"proof": proof(token, "server", str(hello.get("challenge"))), "challenge": mine}))
        answer = decode(await reader.readline())
        if not is_proof(token, role, mine, answer.get("proof")):
            raise WireError("expected a peer that has our token")
    return Peer(reader, writer, role)


async def connect(host: str, port: int, token: bytes, role: str) -> Peer:
    """Connect to one that has the token.

    Raises:
        WireError: it has not.
        OSError: it can't be reached.
        TimeoutError: it is silent.
    """
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE_BYTES)
        try:
            mine = challenge()
            writer.write(encode({"role": role, "challenge": mine}))
            answer = decode(await reader.readline())
            if not is_proof(token, "server", mine, answer.get("proof")):
                raise WireError(f"{host}:{port}: expected a peer that has our token")
            writer.write(encode({"proof": proof(token, role, str(answer.get("challenge")))}))
        except BaseException:
            writer.close()
            raise
    return Peer(reader, writer, "server")
