"""Options of connections between the head node and agents, the same on both sides."""

from __future__ import annotations

CONNECT_SECONDS = 5.0
"""Time limit of connecting, the TLS handshake included."""

KEEPALIVE = (
    # A process that dies closes its connections; one whose machine dies is noticed within half a minute.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
NODE_CHANNEL = (
    *KEEPALIVE,
    ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS * 1000)),
    # A channel does not wait because an earlier one could not connect.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
