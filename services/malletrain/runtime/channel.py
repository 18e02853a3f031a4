"""Channels to services."""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from malletrain.common.addresses import is_loopback
from malletrain.runtime.access.credentials import Credential, showing, showing_blocking
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Peer
from malletrain.tls.channels import renewing_blocking_channel, renewing_channel
from malletrain.tls.credentials import authority_credentials, peer_options
from malletrain.tls.files import CertificateFileError

DEADLINE_SECONDS = 5.0
"""Deadline of most unary calls, in seconds."""
_HEALTH_DEADLINE_SECONDS = 0.5

_LARGEST_BYTES = 64 * 1024 * 1024

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that was restarted is reached again within a second; gRPC's default is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _LARGEST_BYTES),
)


def open_channel(
    peer: Peer | str, credential: Credential | None, largest_bytes: int = _LARGEST_BYTES
) -> grpc.aio.Channel:
    """A channel for the running event loop: with TLS, unless the address is on loopback or a Unix socket.

    Args:
        peer: A service; or its address, where that is on loopback or a Unix socket.
        credential: What is shown with each call; None where none is asked for, as by a supervisor or a health check.
        largest_bytes: Largest message that is accepted; for addresses on this machine.

    Raises:
        InvalidInputError: the certificates by which the service is known can't be read, or only its address is given.
    """
    if _is_local(address := _address(peer)):
        options = (*_OPTIONS, ("grpc.max_receive_message_length", largest_bytes))
        channel = grpc.aio.insecure_channel(address, options=options)
    else:
        known = _known(peer)
        try:
            channel = renewing_channel(
                known.authority_file,
                lambda: grpc.aio.secure_channel(
                    known.address, authority_credentials(known.authority_file), options=_secure_options(known)
                ),
            )
        except CertificateFileError as error:
            raise _unusable(error) from error
    return channel if credential is None else showing(channel, credential)


def open_blocking_channel(peer: Peer | str, credential: Credential | None) -> grpc.Channel:
    """A channel for programs without an event loop, such as the command; otherwise as `open_channel`."""
    if _is_local(address := _address(peer)):
        channel = grpc.insecure_channel(address, options=_OPTIONS)
    else:
        known = _known(peer)
        try:
            channel = renewing_blocking_channel(
                known.authority_file,
                lambda: grpc.secure_channel(
                    known.address, authority_credentials(known.authority_file), options=_secure_options(known)
                ),
            )
        except CertificateFileError as error:
            raise _unusable(error) from error
    return channel if credential is None else showing_blocking(channel, credential)


def _address(peer: Peer | str) -> str:
    return peer if isinstance(peer, str) else peer.address


def _is_local(address: str) -> bool:
    return is_loopback(address) or address.startswith("unix:")


def _known(peer: Peer | str) -> Peer:
    if isinstance(peer, str):
        raise InvalidInputError("address", "a loopback address: nothing tells how to know a service elsewhere", peer)
    return peer


def _secure_options(peer: Peer) -> tuple[tuple[str, str | int], ...]:
    return _OPTIONS if peer.role is None else (*_OPTIONS, *peer_options(peer.role))


def _unusable(error: CertificateFileError) -> InvalidInputError:
    return InvalidInputError("tls.authority_file", f"the certificate by which the services are known ({error})")


def is_serving(channel: grpc.Channel) -> bool:
    """Whether the server of a channel answers a health check (grpc.health.v1) with SERVING within half a second."""
    try:
        response = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=_HEALTH_DEADLINE_SECONDS
        )
    except grpc.RpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
