"""Channels to peers: one long-lived channel each, every call with a deadline."""

from __future__ import annotations

import grpc
import grpc.aio

DEADLINE_SECONDS = 5.0
"""Deadline of an ordinary unary call, in seconds."""

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that was restarted is found again within a second rather than after gRPC's usual two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel for the event loop that runs."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def open_blocking_channel(address: str) -> grpc.Channel:
    """A channel for programs without an event loop, such as the command."""
    return grpc.insecure_channel(address, options=_OPTIONS)
