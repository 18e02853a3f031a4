"""Metrics of Monitor: what trainers report, what it costs to store, and what rescales cost the trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.runtime.metrics.rows import JobRow, limit_rows
from malletrain.runtime.metrics.service_metrics import COUNTER, HISTOGRAM, ServiceMetrics

_STALL_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_STORE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True)
class MonitorSnapshot:
    """Values of the gauges at a scrape.

    Attributes:
        waiting: Messages that wait to be stored.
        jobs: By job heard of lately: samples processed, samples lost, and present throughput in samples/s.
        slow_workers: Workers that are slower than the others of their jobs.
        slow_nodes: Nodes that jobs call slow.
    """

    waiting: int = 0
    jobs: tuple[JobRow, ...] = ()
    slow_workers: int = 0
    slow_nodes: int = 0


class MonitorMetrics:
    """The metrics of one Monitor.

    Attributes:
        store_seconds: How long each write took.
        store_failures: Writes that failed.
    """

    def __init__(self) -> None:
        self._records = COUNTER("malletrain_monitor_records", "Records that have arrived, those sent twice included.")
        self._dropped = COUNTER(
            "malletrain_monitor_records_dropped",
            "Records that reporters had to drop, because nobody took them in time.",
        )
        self.store_seconds = HISTOGRAM(
            "malletrain_monitor_store_seconds", "How long writing what has arrived took.", buckets=_STORE_BUCKETS_S
        )
        self.store_failures = COUNTER("malletrain_monitor_store_failures", "Writes that failed and are tried again.")
        self._stalls = HISTOGRAM(
            "malletrain_monitor_rescale_stall_seconds",
            "How long training stood still for a rescale, by direction: up or down.",
            ["direction"],
            buckets=_STALL_BUCKETS_S,
        )
        self._stalled = COUNTER(
            "malletrain_monitor_rescale_stall_node_seconds",
            "These stalls times the number of nodes after the rescale: part of the time that counts as training.",
        )
        for direction in ("up", "down"):
            self._stalls.labels(direction)

    def register(self, metrics: ServiceMetrics, now: Callable[[], MonitorSnapshot]) -> None:
        """Add them to those of the service; present values are asked for at each scrape.

        Raises:
            RuntimeError: no event loop is running.
        """
        metrics.add(*vars(self).values())
        metrics.watch(now, lambda snapshot: _render(snapshot, metrics.max_jobs), MonitorSnapshot())

    def note_batch(self, records: int, dropped: int) -> None:
        """A batch has been counted.

        Args:
            records: Records in it.
            dropped: Records that its reporter says to have dropped since the batch before.
        """
        self._records.inc(records)
        self._dropped.inc(dropped)

    def note_rescales(self, rescales: Sequence[MeasuredRescale]) -> None:
        """Rescales have been measured."""
        for rescale in rescales:
            self._stalls.labels("up" if rescale.growth else "down").observe(rescale.seconds)
            self._stalled.inc(rescale.seconds * rescale.to_nodes)


def _render(snapshot: MonitorSnapshot, max_rows: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("malletrain_monitor_messages_waiting", "Messages that wait to be stored.", snapshot.waiting)
    yield GaugeMetricFamily(
        "malletrain_monitor_slow_workers",
        "Workers that take longer for their own part of a step than the others of their jobs.",
        snapshot.slow_workers,
    )
    yield GaugeMetricFamily(
        "malletrain_monitor_slow_nodes", "Nodes that jobs of at least one owner call slow.", snapshot.slow_nodes
    )
    samples = CounterMetricFamily(
        "malletrain_monitor_job_samples", "Samples that a job has processed, lost ones included.", labels=["job_id"]
    )
    lost = CounterMetricFamily(
        "malletrain_monitor_job_samples_lost",
        "Samples that a job processed and then lost, because it went back to an earlier state.",
        labels=["job_id"],
    )
    rate = GaugeMetricFamily(
        "malletrain_monitor_job_samples_per_second",
        "Throughput of a job at its present scale, as it enters its scaling curve; 0 while unknown.",
        labels=["job_id"],
    )
    ordered = sorted(snapshot.jobs, key=lambda row: (-row.values[2], row.job_id))
    for row in limit_rows(ordered, max_rows):
        samples.add_metric([row.job_id], row.values[0])
        lost.add_metric([row.job_id], row.values[1])
        rate.add_metric([row.job_id], row.values[2])
    yield from (samples, lost, rate)
