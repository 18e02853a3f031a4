"""The HTTP endpoint at which Prometheus reads the metrics of a process."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, MetricsHandler
from typing_extensions import override

from malletrain.common.tasks import start_thread
from malletrain.runtime.errors import UnavailableError

_MAX_CONNECTIONS = 16
_POLL_SECONDS = 0.05
_SILENCE_SECONDS = 5.0
_MAX_SECONDS = 15.0
"""A connection is cut after so long, whatever it does."""


class MetricsEndpoint:
    """Serves `GET /metrics` in threads of its own, which end with the process."""

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        """Serve from now on.

        Args:
            address: HOST:PORT.
            registry: The metrics.

        Raises:
            UnavailableError: the address can't be listened on.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), registry)
        except OSError as error:
            raise UnavailableError(f"can't listen on {address} ({error})") from error
        start_thread(lambda: self._server.serve_forever(_POLL_SECONDS), "metrics")

    def close(self) -> None:
        """Accept no further connections."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(MetricsHandler):
    """Answers one request, then the connection ends (HTTP/1.0)."""

    timeout = _SILENCE_SECONDS
    server_version = "MalleTrain"
    sys_version = ""

    @override
    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/metrics":
            super().do_GET()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._log = structlog.get_logger(__name__)
        super().__init__(address, type("_BoundHandler", (_Handler,), {"registry": registry}))

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(_MAX_SECONDS, _cut, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        self._log.warning("metrics not served", peer=client_address[0], error=repr(sys.exc_info()[1]))


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may have ended by itself
        request.shutdown(socket.SHUT_RDWR)
