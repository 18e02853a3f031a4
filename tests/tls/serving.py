"""Real gRPC servers and channels with certificates of an installation that a test makes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from malletrain.runtime.access.pki import ensure_certificate
from malletrain.runtime.clock import Clock, SystemClock
from malletrain.tls.credentials import channel_credentials, peer_options, peer_roles, server_credentials

DAY = 86400.0
METHOD = "/test.Echo/Repeat"
FAST = (("grpc.enable_retries", 0), ("grpc.initial_reconnect_backoff_ms", 100))


def certificate(state_dir: Path, role: str, clock: Clock | None = None) -> Path:
    """The certificate file of a role, good now."""
    return ensure_certificate(state_dir, role, clock or SystemClock(), DAY)


@dataclass
class Echo(grpc.GenericRpcHandler):
    """Answers each message of a stream with itself, and notes the roles of its callers."""

    callers: list[frozenset[str]] = field(default_factory=list)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        del handler_call_details
        return grpc.stream_stream_rpc_method_handler(self._repeat)

    async def _repeat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.callers.append(peer_roles(context.auth_context()))
        async for request in requests:
            yield request


@asynccontextmanager
async def echoing(path: Path) -> AsyncIterator[tuple[str, Echo]]:
    """A server of this certificate file: its address and handler."""
    server, echo = grpc.aio.server(), Echo()
    server.add_generic_rpc_handlers((echo,))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(path))
    await server.start()
    try:
        yield f"127.0.0.1:{port}", echo
    finally:
        await server.stop(0)


@asynccontextmanager
async def channel_to(
    address: str, credentials: Path | grpc.ChannelCredentials, role: str
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel that expects a server of this role."""
    if isinstance(credentials, Path):
        credentials = channel_credentials(credentials)
    async with grpc.aio.secure_channel(address, credentials, options=(*peer_options(role), *FAST)) as channel:
        yield channel


async def repeat(stream: Any, message: bytes) -> bytes:
    """Send a message through an open stream; what comes back."""
    async with asyncio.timeout(10):
        await stream.write(message)
        answer: bytes = await stream.read()
        return answer


async def ask(address: str, credentials: Path | grpc.ChannelCredentials, role: str) -> bytes:
    """What the server answers to "hello" on a new connection.

    Raises:
        grpc.aio.AioRpcError: there is no connection.
    """
    async with channel_to(address, credentials, role) as channel:
        stream = channel.stream_stream(METHOD)(timeout=5)
        try:
            return await repeat(stream, b"hello")
        except asyncio.InvalidStateError:
            await _raise_end(stream)
            raise


async def _raise_end(stream: Any) -> None:
    """Raise what ended a stream."""
    code, details = await stream.code(), await stream.details()
    raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


async def shown_serial(address: str, client: Path) -> int:
    """Serial number of the certificate that the server shows in a new handshake. Nothing is verified."""
    return (await asyncio.to_thread(shown_certificate, address, client)).serial_number


def shown_certificate(address: str, client: Path | None = None) -> x509.Certificate:
    """The certificate that a server shows in a new handshake. Nothing is verified.

    Args:
        address: HOST:PORT.
        client: Certificate file of the client; None: it has none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if client is not None:
        context.load_cert_chain(client)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def serial(path: Path) -> int:
    """Serial number of the certificate in a file."""
    return x509.load_pem_x509_certificates(path.read_bytes())[0].serial_number
