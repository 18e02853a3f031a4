"""What Prometheus reads of a Monitor that serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.monitor.store import MonitorStore
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from tests.monitor.running import report, running_monitor
from tests.monitor.trainer import FakeTrainer
from tests.support.metrics import read

PREFIX = "malletrain_monitor_"


async def test_reports_samples_and_stalls(tmp_path: Path) -> None:
    metrics, trainer = ServiceMetrics(), FakeTrainer(nodes=1)
    async with running_monitor(tmp_path, metrics=metrics) as monitor:
        trainer.steps(20, 0.5)
        trainer.nodes = 4
        trainer.step(10.5)
        trainer.steps(20, 0.5)
        batch = trainer.take(dropped=3)
        await report(monitor.stub, [batch, batch])  # the second one was counted before
        trainer.position -= 320  # back to an earlier checkpoint
        trainer.steps(1, 0.5)
        await report(monitor.stub, [trainer.take()])
        found = await read(metrics)
    assert found[f"{PREFIX}records_total",] == 41 + 41 + 1
    assert found[f"{PREFIX}records_dropped_total",] == 3
    assert found[f"{PREFIX}rescale_stall_seconds_count", "up"] == 1
    assert found[f"{PREFIX}rescale_stall_seconds_count", "down"] == 0
    assert found[f"{PREFIX}rescale_stall_seconds_sum", "up"] == pytest.approx(10)
    assert found[f"{PREFIX}rescale_stall_node_seconds_total",] == pytest.approx(40)
    assert found[f"{PREFIX}job_samples_total", "j1"] == trainer.processed
    assert found[f"{PREFIX}job_samples_lost_total", "j1"] == 320
    assert found[f"{PREFIX}job_samples_per_second", "j1"] == pytest.approx(256, rel=0.01)
    assert found[f"{PREFIX}store_seconds_count",] >= 1
    assert found[f"{PREFIX}store_failures_total",] == 0


async def test_after_a_restart_nothing_counts_twice(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.steps(20, 0.5)
    batch = trainer.take(dropped=3)
    async with running_monitor(tmp_path) as monitor:
        await report(monitor.stub, [batch])
    metrics = ServiceMetrics()
    async with running_monitor(tmp_path, metrics=metrics) as monitor:
        await report(monitor.stub, [batch])
        found = await read(metrics)
    assert found[f"{PREFIX}records_dropped_total",] == 0
    assert found[f"{PREFIX}job_samples_total", "j1"] == trainer.processed


async def test_writes_that_fail_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failures = MonitorStore.write, [1, 1]

    def write_at_last(store: MonitorStore, jobs: object) -> None:
        if failures:
            failures.pop()
            raise DatabaseUnavailableError("monitor")
        write(store, jobs)

    monkeypatch.setattr(MonitorStore, "write", write_at_last)
    metrics, trainer = ServiceMetrics(), FakeTrainer()
    trainer.steps(5, 0.5)
    async with running_monitor(tmp_path, metrics=metrics) as monitor:
        await report(monitor.stub, [trainer.take()])
        found = await read(metrics)
    assert found[f"{PREFIX}store_failures_total",] == 2
    assert found[f"{PREFIX}store_seconds_count",] == 1
