"""Metrics of the Scavenger: the idle set, queries to a scheduler, placeholders, and how long a reclaim takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from malletrain.runtime.metrics.service_metrics import COUNTER, HISTOGRAM, ServiceMetrics
from malletrain.scavenger.machine.idle_set import IdleEvent
from malletrain.scavenger.sources.base import PlaceholderStatus, QueryStatus, SourceStatus

_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_QUERY = ("source", "query")

AGENT_LEFT = "agent_left"
"""Step of a reclaim: from when an agent was told to leave until no process of ours is on its node."""
CONFIRMED = "confirmed"
"""Step of a reclaim: from a call of ReclaimNodes until JobManager has confirmed that the nodes are free."""

ReclaimTimer = Callable[[str, float], None]
"""Told the name of a step of a reclaim and how long it took, in seconds."""


@dataclass(frozen=True)
class Gauges:
    """Values of the gauges at a scrape.

    Attributes:
        source: How queries and placeholders fare.
        idle: Number of nodes that count as idle.
        quarantined: Number of quarantined nodes.
        stale: Whether the last good answer is too old.
        slow: Number of nodes that count as slow.
    """

    source: SourceStatus
    idle: int
    quarantined: int
    stale: bool
    slow: int = 0


class ScavengerMetrics:
    """The metrics of one Scavenger.

    Attributes:
        unconfirmed: Reclaims that have ended while it was not known whether all of their nodes are free.
        failed_checks: Checks of nodes before their first worker that have failed.
    """

    def __init__(self) -> None:
        self._reclaims = HISTOGRAM(
            "malletrain_scavenger_reclaim_step_seconds",
            "How long each step of giving nodes back has taken.",
            ["step"],
            buckets=_BUCKETS_S,
        )
        for step in (AGENT_LEFT, CONFIRMED):
            self._reclaims.labels(step)
        self.unconfirmed = COUNTER(
            "malletrain_scavenger_reclaims_unconfirmed",
            "Calls of ReclaimNodes by whose end JobManager had not confirmed that all of the nodes are free.",
        )
        self._joined = COUNTER("malletrain_scavenger_nodes_joined", "Nodes that joined the idle set.")
        self.failed_checks = COUNTER(
            "malletrain_scavenger_node_checks_failed", "Checks of nodes before their first worker that have failed."
        )
        self._left = COUNTER("malletrain_scavenger_nodes_left", "Nodes that left the idle set.")

    def register(self, metrics: ServiceMetrics, now: Callable[[], Gauges]) -> None:
        """Add them to those of the service; present values are asked for at each scrape.

        Raises:
            RuntimeError: no event loop is running.
        """
        metrics.add(*vars(self).values())
        metrics.watch(now, _render, Gauges(SourceStatus(), 0, 0, stale=False))

    def reclaim_step(self, step: str, seconds: float) -> None:
        """A step of a reclaim took so many seconds."""
        self._reclaims.labels(step).observe(seconds)

    def note_change(self, event: IdleEvent) -> None:
        """The idle set has changed."""
        self._joined.inc(len(event.joined))
        self._left.inc(len(event.left))


def _render(gauges: Gauges) -> Iterator[Metric]:
    yield GaugeMetricFamily("malletrain_scavenger_idle_nodes", "Nodes that count as idle.", gauges.idle)
    yield GaugeMetricFamily(
        "malletrain_scavenger_quarantined_nodes",
        "Nodes that are left alone because work kept failing there, or because their check has failed.",
        gauges.quarantined,
    )
    yield GaugeMetricFamily(
        "malletrain_scavenger_slow_nodes",
        "Nodes that count as slow, by jobs of several owners or by our own measure.",
        gauges.slow,
    )
    yield GaugeMetricFamily(
        "malletrain_scavenger_idle_set_stale",
        "1 while the last good answer of the scheduler is too old to take nodes.",
        int(gauges.stale),
    )
    yield from _query_metrics(gauges.source.queries)
    yield from _placeholder_metrics(gauges.source.placeholders)


def _query_metrics(queries: Iterable[QueryStatus]) -> Iterator[Metric]:
    ages = GaugeMetricFamily(
        "malletrain_scavenger_answer_age_seconds",
        "Age of the last good answer; +Inf before the first.",
        labels=_QUERY,
    )
    times = GaugeMetricFamily("malletrain_scavenger_last_query_seconds", "How long the last query took.", labels=_QUERY)
    counts = CounterMetricFamily(
        "malletrain_scavenger_queries",
        "Queries to a scheduler, by outcome: answered or failed.",
        labels=(*_QUERY, "outcome"),
    )
    for status in queries:
        labels = [status.source, status.query]
        ages.add_metric(labels, status.age_seconds)
        times.add_metric(labels, status.seconds)
        counts.add_metric([*labels, "answered"], status.asked - status.failed)
        counts.add_metric([*labels, "failed"], status.failed)
    yield from (ages, times, counts)


def _placeholder_metrics(placeholders: Iterable[PlaceholderStatus]) -> Iterator[Metric]:
    counts = GaugeMetricFamily(
        "malletrain_scavenger_placeholders",
        "Placeholders by phase: pending, running (the node is held) or ending.",
        labels=("source", "phase"),
    )
    failures = GaugeMetricFamily(
        "malletrain_scavenger_placeholder_failures_in_a_row",
        "Attempts to hold a node that failed in a row.",
        labels=("source",),
    )
    for status in placeholders:
        for phase in ("pending", "running", "ending"):
            counts.add_metric([status.source, phase], getattr(status, phase))
        failures.add_metric([status.source], status.failures_in_a_row)
    yield from (counts, failures)
