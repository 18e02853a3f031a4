"""The metrics of one service, and what each scrape asks of its event loop.

The HTTP endpoint at which Prometheus reads the metrics of a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, MetricsHandler, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from malletrain.common.tasks import start_thread
from malletrain.runtime.errors import UnavailableError

_MAX_CONNECTIONS = 16
_POLL_SECONDS = 0.05
_SILENCE_SECONDS = 5.0
MAX_SECONDS = 15.0
"""A connection is cut after so long, whatever it does."""


class MetricsEndpoint:
    """Serves `GET /metrics` in threads of its own, which end with the process."""

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        """Serves at once.

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
        deadline = threading.Timer(MAX_SECONDS, _cut, [request])
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


_ANSWER_SECONDS = 5.0

SnapshotT = TypeVar("SnapshotT")
COUNTER, HISTOGRAM = partial(Counter, registry=None), partial(Histogram, registry=None)
"""Metrics that `ServiceMetrics.add` registers."""


class ServiceMetrics:
    """What a service tells Prometheus.

    Attributes:
        registry: What has been added so far.
        max_jobs: Most jobs with metrics of their own.
    """

    def __init__(self, address: str = "", max_jobs: int = 100) -> None:
        """
        Args:
            address: HOST:PORT at which they are served; empty: nowhere.
            max_jobs: Most jobs with metrics of their own.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.max_jobs = max_jobs
        self._address = address
        self._endpoint: MetricsEndpoint | None = None

    @property
    def served(self) -> bool:
        """Whether anybody can read them."""
        return bool(self._address)

    def add(self, *collectors: Collector) -> None:
        """Add metrics.

        Raises:
            ValueError: there are metrics of that name.
        """
        for collector in collectors:
            self.registry.register(collector)

    def watch(
        self, take: Callable[[], SnapshotT], render: Callable[[SnapshotT], Iterable[Metric]], empty: SnapshotT
    ) -> None:
        """Add metrics that are made at each scrape.

        Args:
            take: Called in the running event loop, so that it sees no half-made change. Must be quick.
            render: Makes the metrics of what it returned, in another thread.
            empty: A value from which the names and kinds of all metrics follow.

        Raises:
            RuntimeError: no event loop is running.
        """
        loop = asyncio.get_running_loop()

        async def ask() -> SnapshotT:
            return take()

        def from_another_thread() -> SnapshotT:
            return asyncio.run_coroutine_threadsafe(ask(), loop).result(_ANSWER_SECONDS)

        self.add(_Watched(from_another_thread, render, empty))

    def open(self) -> None:
        """Serve them, if there is an address. One that is taken is logged: a service runs without metrics, too."""
        if not self._address:
            return
        log = structlog.get_logger(__name__)
        try:
            self._endpoint = MetricsEndpoint(self._address, self.registry)
        except UnavailableError as error:
            log.error("no metrics are served", address=self._address, error=str(error))
        else:
            log.info("serving metrics", address=self._address)

    def close(self) -> None:
        """Serve them no longer."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None


class _Watched(Collector, Generic[SnapshotT]):
    def __init__(
        self, take: Callable[[], SnapshotT], render: Callable[[SnapshotT], Iterable[Metric]], empty: SnapshotT
    ) -> None:
        self._take = take
        self._render = render
        self._empty = empty

    def describe(self) -> Iterator[Metric]:
        yield from self._render(self._empty)

    def collect(self) -> Iterator[Metric]:
        yield from self._render(self._take())
