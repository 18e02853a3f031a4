"""The metrics of a Scavenger that serves, as Prometheus gets them."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest

from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.scavenger.sources.base import PlaceholderStatus, QueryStatus, SourceStatus
from malletrain.scavenger.telemetry.metrics import AGENT_LEFT, Gauges, ScavengerMetrics
from tests.scavenger.running import NOBODY, releasing, running_scavenger
from tests.support.metrics import read
from tests.support.waiting import wait_until_async

STATIC = {"source": "static", "nodes": ["n1", "n2"]}
UNCONFIRMED = ("malletrain_scavenger_reclaims_unconfirmed_total",)
CONFIRMED = ("malletrain_scavenger_reclaim_step_seconds_count", "confirmed")


async def test_what_is_true_is_told_when_it_is_asked_for() -> None:
    service, metrics = ServiceMetrics(), ScavengerMetrics()
    status = QueryStatus("slurm", "nodes", 1.5, 7, 2, 0, 0.25, "")
    held = PlaceholderStatus("slurm", 1, 5, 0, failures_in_a_row=3)
    metrics.register(service, lambda: Gauges(SourceStatus((status,), (held,)), 3, 1, stale=True))
    metrics.reclaim_step(AGENT_LEFT, 0.3)
    found = await read(service)
    assert found["malletrain_scavenger_answer_age_seconds", "nodes", "slurm"] == 1.5
    assert found["malletrain_scavenger_queries_total", "answered", "nodes", "slurm"] == 5
    assert found["malletrain_scavenger_queries_total", "failed", "nodes", "slurm"] == 2
    assert found["malletrain_scavenger_idle_nodes",] == 3
    assert found["malletrain_scavenger_quarantined_nodes",] == 1
    assert found["malletrain_scavenger_idle_set_stale",] == 1
    assert found["malletrain_scavenger_placeholders", "running", "slurm"] == 5
    assert found["malletrain_scavenger_placeholder_failures_in_a_row", "slurm"] == 3
    assert found["malletrain_scavenger_reclaim_step_seconds_sum", AGENT_LEFT] == 0.3


async def test_a_reclaim_is_timed(tmp_path: Path) -> None:
    metrics = ServiceMetrics()
    async with (
        releasing() as (releases, address),
        running_scavenger(tmp_path, STATIC, address, metrics=metrics) as scavenger,
    ):
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"n1", "n2"})
        releases.may_release.set()
        await scavenger.reclaim(["n1"], hold_seconds=60)
        found = await read(metrics)
        assert found["malletrain_scavenger_idle_nodes",] == 1
        assert found["malletrain_scavenger_nodes_joined_total",] == 2
        assert found["malletrain_scavenger_nodes_left_total",] == 1
        assert (found[CONFIRMED], found[UNCONFIRMED]) == (1, 0)
        releases.keeps.add("n2")
        await scavenger.reclaim(["n2"], hold_seconds=60)
        found = await read(metrics)
        assert (found[CONFIRMED], found[UNCONFIRMED]) == (1, 1)


async def test_a_reclaim_that_nobody_confirms_counts(tmp_path: Path) -> None:
    metrics = ServiceMetrics()
    async with running_scavenger(tmp_path, STATIC, NOBODY, metrics=metrics) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"n1", "n2"})
        with pytest.raises(grpc.aio.AioRpcError, match="can't confirm"):
            await scavenger.reclaim(["n1"], hold_seconds=60)
        assert (await read(metrics))[UNCONFIRMED] == 1
