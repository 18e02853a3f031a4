"""Channels to services."""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from malletrain.runtime.access.credentials import Credential, showing, showing_blocking

DEADLINE_SECONDS = 5.0
"""Deadline of most unary calls, in seconds."""
_HEALTH_DEADLINE_SECONDS = 0.5

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
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


def open_channel(address: str, credential: Credential | None) -> grpc.aio.Channel:
    """A channel for the running event loop.

    Args:
        address: Address of a service.
        credential: What is shown with each call; None where none is asked for, as by a supervisor or a health check.
    """
    channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    return channel if credential is None else showing(channel, credential)


def open_blocking_channel(address: str, credential: Credential | None) -> grpc.Channel:
    """A channel for programs without an event loop, such as the command; arguments as for `open_channel`."""
    channel = grpc.insecure_channel(address, options=_OPTIONS)
    return channel if credential is None else showing_blocking(channel, credential)


def is_serving(channel: grpc.Channel) -> bool:
    """Whether the server of a channel answers a health check (grpc.health.v1) with SERVING within half a second."""
    try:
        response = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=_HEALTH_DEADLINE_SECONDS
        )
    except grpc.RpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
