"""Asking a server whether it serves (grpc.health.v1)."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_DEADLINE_SECONDS = 0.5


def is_serving(channel: grpc.Channel) -> bool:
    """Whether the server behind a channel says SERVING within half a second."""
    try:
        response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_DEADLINE_SECONDS)
    except grpc.RpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
