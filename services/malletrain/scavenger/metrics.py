"""Metrics for Prometheus: how queries to a scheduler fare, and how long each step of a reclaim takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from malletrain.scavenger.sources.base import PlaceholderStatus, SourceStatus

_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ANSWER_SECONDS = 5.0
_QUERY = ("source", "query")

AGENT_LEFT = "agent_left"
"""Step of a reclaim: from when an agent was told to leave until no process of ours is on its node."""
CONFIRMED = "confirmed"
"""Step of a reclaim: from a call of ReclaimNodes until JobManager has confirmed that the nodes are free."""

ReclaimTimer = Callable[[str, float], None]
"""Told the name of a step of a reclaim and how long it took, in seconds."""


def ignore_time(step: str, seconds: float) -> None:
    """The timer where times are not measured."""
    del step, seconds


@dataclass(frozen=True)
class Gauges:
    """Present values.

    Attributes:
        source: How queries and placeholders fare.
        idle: Number of nodes that count as idle.
        quarantined: Number of quarantined nodes.
        stale: Whether the last good answer is too old.
    """

    source: SourceStatus
    idle: int
    quarantined: int
    stale: bool


class ScavengerMetrics:
    """The metrics of one Scavenger."""

    def __init__(self) -> None:
        """Begin without any measurement."""
        self.registry = CollectorRegistry()
        self._reclaims = Histogram(
            "malletrain_reclaim_seconds",
            "How long each step of giving nodes back has taken.",
            ["step"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    def reclaim_step(self, step: str, seconds: float) -> None:
        """A step of a reclaim took so many seconds."""
        self._reclaims.labels(step).observe(seconds)

    def follow(self, now: Callable[[], Gauges]) -> None:
        """Have `now` called in the running event loop at each scrape.

        Raises:
            RuntimeError: no event loop is running.
        """
        loop = asyncio.get_running_loop()

        async def ask() -> Gauges:
            return now()

        def from_another_thread() -> Gauges:
            return asyncio.run_coroutine_threadsafe(ask(), loop).result(_ANSWER_SECONDS)

        self.registry.register(_Present(from_another_thread))

    def serve(self, address: str) -> None:
        """Serve HTTP on HOST:PORT in a thread. Nothing happens without an address; one that is taken is logged."""
        if not address:
            return
        host, _, port = address.rpartition(":")
        log = structlog.get_logger(__name__)
        try:
            start_http_server(int(port), host.strip("[]"), self.registry)
        except OSError as error:
            log.warning("addresses.scavenger_metrics can't be listened on", address=address, error=str(error))
        else:
            log.info("metrics", address=address)


class _Present(Collector):
    def __init__(self, now: Callable[[], Gauges]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        gauges = self._now()
        yield GaugeMetricFamily("malletrain_idle_nodes", "Nodes that count as idle.", gauges.idle)
        yield GaugeMetricFamily("malletrain_quarantined_nodes", "Nodes that are left alone.", gauges.quarantined)
        yield GaugeMetricFamily(
            "malletrain_picture_stale", "1 while the last good answer is too old to take nodes.", int(gauges.stale)
        )
        ages = GaugeMetricFamily("malletrain_answer_age_seconds", "Age of the last good answer.", labels=_QUERY)
        times = GaugeMetricFamily("malletrain_answer_seconds", "How long the last answer took.", labels=_QUERY)
        asked = CounterMetricFamily("malletrain_queries", "Questions to a scheduler.", labels=_QUERY)
        failed = CounterMetricFamily("malletrain_failed_queries", "Those without a good answer.", labels=_QUERY)
        for status in gauges.source.queries:
            labels = [status.source, status.query]
            ages.add_metric(labels, status.age_seconds)
            times.add_metric(labels, status.seconds)
            asked.add_metric(labels, status.asked)
            failed.add_metric(labels, status.failed)
        yield from (ages, times, asked, failed)
        yield from _placeholder_metrics(gauges.source.placeholders)


def _placeholder_metrics(placeholders: Iterable[PlaceholderStatus]) -> Iterator[Metric]:
    counts = GaugeMetricFamily("malletrain_placeholders", "Placeholders by phase.", labels=("source", "phase"))
    failures = GaugeMetricFamily(
        "malletrain_placeholder_failures_in_a_row", "Attempts to hold a node that failed in a row.", labels=("source",)
    )
    for status in placeholders:
        for phase in ("pending", "running", "ending"):
            counts.add_metric([status.source, phase], getattr(status, phase))
        failures.add_metric([status.source], status.failures_in_a_row)
    yield from (counts, failures)
