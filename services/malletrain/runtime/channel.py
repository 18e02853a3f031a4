"""Channels to services."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from malletrain.runtime.access.credentials import Credential, ServiceCredential, showing, showing_blocking
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Peer
from malletrain.tls.channels import CONNECT_SECONDS, WrappedChannel, renewing_blocking_channel, renewing_channel
from malletrain.tls.credentials import authority_credentials, peer_options
from malletrain.tls.files import CertificateFileError

DEADLINE_SECONDS = 5.0
"""Deadline of most unary calls, in seconds."""
_HEALTH_DEADLINE_SECONDS = 0.5

_MAX_BYTES = 64 * 1024 * 1024

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that was restarted is reached again within a second; gRPC's default is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not the least pause, whatever it is called: how long an attempt may take, the TLS handshake included.
    ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MAX_BYTES),
)


def open_channel(peer: Peer, credential: Credential | ServiceCredential | None) -> grpc.aio.Channel:
    """A channel for the running event loop, with TLS: nothing is shown to anybody but the service.

    Args:
        peer: The service.
        credential: What is shown with each call; None where none is asked for, as by a health check.

    Raises:
        InvalidInputError: the certificates by which the service is known can't be read.
    """
    try:
        channel = renewing_channel(
            peer.authority_file,
            lambda: grpc.aio.secure_channel(
                peer.address, authority_credentials(peer.authority_file), options=_secure_options(peer)
            ),
        )
    except CertificateFileError as error:
        raise _unusable(error) from error
    return channel if credential is None else showing(channel, _towards(peer, credential))


def open_socket_channel(path: Path, max_bytes: int) -> grpc.aio.Channel:
    """A channel to a Unix socket, whose folder tells who listens.

    Args:
        path: The socket.
        max_bytes: Largest message that is accepted.
    """
    options = (*_OPTIONS, ("grpc.max_receive_message_length", max_bytes))
    return grpc.aio.insecure_channel(f"unix:{path}", options=options)


def open_blocking_channel(peer: Peer, credential: Credential | ServiceCredential | None) -> grpc.Channel:
    """A channel for programs without an event loop, such as the command; otherwise as `open_channel`.

    A call that is answered by one message has a deadline, also where the caller names none. `service_of` says of errors
    of calls which service was called.
    """
    try:
        channel = renewing_blocking_channel(
            peer.authority_file,
            lambda: grpc.secure_channel(
                peer.address, authority_credentials(peer.authority_file), options=_secure_options(peer)
            ),
        )
    except CertificateFileError as error:
        raise _unusable(error) from error
    bounded = _bound_calls(channel, peer.service)
    return bounded if credential is None else showing_blocking(bounded, _towards(peer, credential))


_NOTE = "the call was made to the service "


def service_of(error: grpc.RpcError) -> str:
    """Name of the service of a call that has failed, e.g. job_manager; empty if it is not known."""
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)), "")


def _bound_calls(channel: grpc.Channel, service: str) -> grpc.Channel:
    """A blocking channel whose calls have a deadline, unless they answer by a stream, and whose errors name it."""

    def wrap(method: Any, kind: str) -> Any:
        return _BoundedCall(method, service, None if kind.endswith("_stream") else DEADLINE_SECONDS)

    return cast("grpc.Channel", WrappedChannel(channel, wrap))


class _BoundedCall:
    """A method of such a channel."""

    def __init__(self, inner: Any, service: str, seconds: float | None) -> None:
        self._inner = inner
        self._note = _NOTE + service
        self._seconds = seconds

    def __call__(self, *arguments: Any, timeout: float | None = None, **options: Any) -> Any:
        return self._begin(self._inner, arguments, timeout, options)

    def __getattr__(self, name: str) -> Any:
        """`with_call` and `future` of methods."""
        inner = getattr(self._inner, name)

        def call(*arguments: Any, timeout: float | None = None, **options: Any) -> Any:
            return self._begin(inner, arguments, timeout, options)

        return call

    def _begin(self, inner: Any, arguments: Any, timeout: float | None, options: dict[str, Any]) -> Any:
        try:
            call = inner(*arguments, timeout=self._seconds if timeout is None else timeout, **options)
        except grpc.RpcError as error:
            error.add_note(self._note)
            raise
        if isinstance(call, grpc.RpcError):  # a stream, or what comes later, is raised itself if it fails
            call.add_note(self._note)
        return call


def _towards(peer: Peer, credential: Credential | ServiceCredential) -> Credential:
    return credential.towards(peer.service) if isinstance(credential, ServiceCredential) else credential


def _secure_options(peer: Peer) -> tuple[tuple[str, str | int], ...]:
    return _OPTIONS if peer.role is None else (*_OPTIONS, *peer_options(peer.role))


def _unusable(error: CertificateFileError) -> InvalidInputError:
    return InvalidInputError("tls.authority_file", f"the certificate by which the services are known ({error})")


def serves(peer: Peer) -> bool:
    """Whether a service answers a health check with SERVING within half a second; never before it has a certificate."""
    try:
        channel = open_blocking_channel(peer, None)
    except InvalidInputError:
        return False
    with channel:
        return is_serving(channel)


def is_serving(channel: grpc.Channel) -> bool:
    """Whether the server of a channel answers a health check (grpc.health.v1) with SERVING within half a second."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # of the head node, which callers are without

    try:
        response = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=_HEALTH_DEADLINE_SECONDS
        )
    except grpc.RpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
