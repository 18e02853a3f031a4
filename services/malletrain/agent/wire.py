"""How the agent speaks gRPC: limits of its servers, options of its channels, and what they are checked by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from malletrain.tls.channels import KEEPALIVE, NODE_CHANNEL
from malletrain.tls.credentials import channel_credentials, peer_options
from malletrain.tls.sources import CertificateSource

MAX_REQUEST_BYTES = 4 << 20
"""Longest message of a supervisor."""

_SERVER_OPTIONS = (
    *KEEPALIVE,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 256),
)

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True)
class Malformed:
    """Stands for a request that is no message of its type."""

    error: str


@dataclass(frozen=True)
class Parser(Generic[MessageT]):
    """Parses requests without raising: gRPC itself would end the call with a status that blames the server."""

    kind: type[MessageT]

    def __call__(self, body: bytes) -> MessageT | Malformed:
        """The message."""
        try:
            return self.kind.FromString(body)
        except DecodeError as error:
            return Malformed(str(error))


def has_unknown_fields(message: Message) -> bool:
    """Whether a message has fields of a later version."""
    return len(UnknownFieldSet(message)) > 0


def new_server(max_calls: int, max_request_bytes: int = MAX_REQUEST_BYTES) -> grpc.aio.Server:
    """A server with limits.

    Args:
        max_calls: Calls under way; further ones get RESOURCE_EXHAUSTED.
        max_request_bytes: Longest request message.
    """
    options = (*_SERVER_OPTIONS, ("grpc.max_receive_message_length", max_request_bytes))
    return grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)


def open_channel(address: str, certificate: Path | CertificateSource, role: str) -> grpc.aio.Channel:
    """A channel for one call. It accepts only a server of this role, and shows the certificate that there is now.

    Args:
        address: HOST:PORT.
        certificate: The agent's certificate.
        role: Role of the server.

    Raises:
        CertificateFileError: the certificate can't be used.
    """
    options = (*NODE_CHANNEL, *peer_options(role))
    return grpc.aio.secure_channel(address, channel_credentials(certificate), options)


Log = Callable[[str], None]
"""Called with a line of text."""
