"""The metrics of one service, and what each scrape asks of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from malletrain.runtime.errors import UnavailableError
from malletrain.runtime.metrics.endpoint import MetricsEndpoint

_ANSWER_SECONDS = 5.0

SnapshotT = TypeVar("SnapshotT")


class ServiceMetrics:
    """What a service tells Prometheus.

    Attributes:
        registry: What has been added so far.
        max_jobs: Most jobs with metrics of their own.
    """

    def __init__(self, address: str = "", max_jobs: int = 100) -> None:
        """Begin without any metric.

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
