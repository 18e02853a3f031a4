"""A gRPC server with health checks, reflection and errors as status codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from malletrain.common.addresses import is_loopback
from malletrain.common.tasks import lasting, start_task
from malletrain.runtime.access.interceptor import PeerInterceptor
from malletrain.runtime.admission.connection_limiter import ConnectionLimiter
from malletrain.runtime.admission.interceptor import AdmissionInterceptor
from malletrain.runtime.admission.peers import PeerNames
from malletrain.runtime.error_interceptor import ErrorInterceptor
from malletrain.runtime.errors import InvalidInputError, UnavailableError
from malletrain.runtime.limits import ServerLimits
from malletrain.runtime.metrics.calls import CallInterceptor
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.runtime.plain_reports import TwoKindsOfConnections
from malletrain.runtime.tracing.propagation import TraceInterceptor
from malletrain.runtime.tracing.spans import NoTracer, Tracer
from malletrain.tls.credentials import server_credentials
from malletrain.tls.files import CertificateFileError

Register = Callable[[Any, grpc.aio.Server], None]

_DEAD_PEER_MS = 60_000
_HANDSHAKE_MS = 10_000
_READ_BYTES = 8 * 1024
_MAX_READ_BYTES = 64 * 1024


def server_options(limits: ServerLimits) -> tuple[tuple[str, int], ...]:
    """Options of a gRPC server.

    Args:
        limits: What callers are granted.
    """
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", _DEAD_PEER_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_concurrent_streams", limits.max_streams_per_connection),
        ("grpc.max_connection_idle_ms", round(limits.idle_connection_seconds * 1000)),
        # A probe would widen the windows of a connection's calls to megabytes, and what they hold that nobody reads.
        ("grpc.http2.bdp_probe", 0),
        # Else gRPC reads up to 4 MiB at a time, into a buffer that each connection keeps.
        ("grpc.experimental.tcp_read_chunk_size", _READ_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", _MAX_READ_BYTES),
    )


class ServiceHost:
    """The gRPC server of a process.

    Attributes:
        address: HOST:PORT at which it is to serve.
        metrics: What it tells Prometheus; services add their own.
        tracer: Makes its spans.
    """

    def __init__(
        self,
        address: str,
        access: grpc.aio.ServerInterceptor,
        limits: ServerLimits | None = None,
        credentials: grpc.ServerCredentials | None = None,
        metrics: ServiceMetrics | None = None,
        tracer: Tracer | None = None,
        *,
        plain_reports: bool = False,
    ) -> None:
        """Nothing happens before `start`.

        Args:
            address: HOST:PORT; port 0 means any free port.
            access: Checks who calls, before anything else; see `malletrain.runtime.access.installation`.
            limits: What callers are granted.
            credentials: Credentials for TLS; None: without, only on loopback and in tests.
            metrics: Where calls are counted; None: they are not.
            tracer: Makes its spans; None: there are none.
            plain_reports: Whether trainers may report without TLS, too.

        Raises:
            InvalidInputError: the address is not on loopback, and there are no credentials.
        """
        if credentials is None and not is_loopback(address):
            raise InvalidInputError("address", "a loopback address: others are served over TLS only", address)
        limits = limits or ServerLimits()
        self._credentials = credentials
        self._both = TwoKindsOfConnections() if plain_reports and credentials is not None else None
        self.address = address
        self.metrics = metrics or ServiceMetrics()
        counting = [CallInterceptor(self.metrics.registry)] if self.metrics.served else []
        self.tracer = tracer or NoTracer()
        tracing = [TraceInterceptor()] if self.tracer.enabled else []
        self._peers = PeerNames(address)
        # Not gRPC's own limit of calls: it is one for all, and counts calls before anybody knows whose they are.
        self._server = grpc.aio.server(
            interceptors=[
                AdmissionInterceptor(limits, self._peers),
                *counting,
                *tracing,
                PeerInterceptor(with_tls=credentials is not None),
                access,
                ErrorInterceptor(),
            ],
            options=server_options(limits),
        )
        self._limiter = ConnectionLimiter(self._peers, limits.max_connections_per_peer)
        self._watching: asyncio.Task[object] | None = None
        self._health = HealthServicer()
        self._names: list[str] = []

    def add(self, service_full_name: str, register: Register, servicer: object) -> None:
        """Add a servicer, e.g. `add("malletrain.v1.MonitorService", add_MonitorServiceServicer_to_server, monitor)`."""
        register(servicer, self._server)
        self._names.append(service_full_name)

    def listen_for_nodes(self, address: str, certificate: Path) -> None:
        """Serve at a second address, too, to which only processes with a certificate of this installation connect.

        Args:
            address: HOST:PORT.
            certificate: Certificate file of this service.

        Raises:
            UnavailableError: the address can't be bound, or the certificate can't be used.
        """
        try:
            self._limiter.further_ports.append(self._server.add_secure_port(address, server_credentials(certificate)))
        except (RuntimeError, CertificateFileError) as error:
            raise UnavailableError(f"can't listen on {address}: is another process there? ({error})") from error

    async def start(self) -> int:
        """Serve; returns the port.

        Raises:
            UnavailableError: the address can't be bound.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            port = self._add_port()
            await self._server.start()
            if self._both is not None:
                host, _, wanted = self.address.rpartition(":")
                port = await self._both.listen(host.strip("[]"), int(wanted))
        except (RuntimeError, OSError) as error:
            raise UnavailableError(
                f"can't listen on {self.address}: is another process there? End it, or set another address ({error})"
            ) from error
        self._peers.port = port
        self._watching = start_task(lasting(self._limiter.run(), "connections"), "connections")
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    def _add_port(self) -> int:
        if self._credentials is None:
            return self._server.add_insecure_port(self.address)
        if self._both is not None:
            self._server.add_insecure_port(f"unix:{self._both.plain}")
            return self._server.add_secure_port(f"unix:{self._both.with_tls}", self._credentials)
        return self._server.add_secure_port(self.address, self._credentials)

    async def drain(self) -> None:
        """Report NOT_SERVING to health checks."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float = 2.0) -> None:
        """Accept no new calls, and cancel those that are under way after `grace` seconds."""
        if self._both is not None:
            self._both.close()
        if self._watching is not None:
            self._watching.cancel()
        await self._server.stop(grace)
