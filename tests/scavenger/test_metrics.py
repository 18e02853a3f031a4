"""The metrics of a Scavenger that serves, as Prometheus gets them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from malletrain.scavenger.metrics import AGENT_LEFT, Gauges, ScavengerMetrics
from malletrain.scavenger.sources.base import PlaceholderStatus, QueryStatus, SourceStatus
from tests.scavenger.running import releasing, running_scavenger
from tests.support.ports import free_port
from tests.support.waiting import wait_until_async

STATIC = {"source": "static", "nodes": ["n1", "n2"]}


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Name and values of the labels, these in order, to value."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [entry for family in families for entry in family.samples]
    return {(entry.name, *(value for _, value in sorted(entry.labels.items()))): entry.value for entry in samples}


async def test_what_is_true_is_told_when_it_is_asked_for() -> None:
    port, metrics = free_port(), ScavengerMetrics()
    status = QueryStatus("slurm", "nodes", 1.5, 7, 2, 0, 0.25, "")
    held = PlaceholderStatus("slurm", 1, 5, 0, failures_in_a_row=3)
    metrics.follow(lambda: Gauges(SourceStatus((status,), (held,)), 3, 1, stale=True))
    metrics.reclaim_step(AGENT_LEFT, 0.3)
    metrics.serve(f"127.0.0.1:{port}")
    found = await asyncio.to_thread(scrape, port)
    assert found["malletrain_answer_age_seconds", "nodes", "slurm"] == 1.5
    assert found["malletrain_queries_total", "nodes", "slurm"] == 7
    assert found["malletrain_failed_queries_total", "nodes", "slurm"] == 2
    assert found["malletrain_idle_nodes",] == 3
    assert found["malletrain_picture_stale",] == 1
    assert found["malletrain_placeholders", "running", "slurm"] == 5
    assert found["malletrain_placeholder_failures_in_a_row", "slurm"] == 3
    assert found["malletrain_reclaim_seconds_sum", AGENT_LEFT] == 0.3
    ScavengerMetrics().serve(f"127.0.0.1:{port}")  # it is taken: noted, no more


async def test_a_reclaim_is_timed(tmp_path: Path) -> None:
    port = free_port()
    async with (
        releasing() as (releases, address),
        running_scavenger(tmp_path, STATIC, address, scavenger_metrics=f"127.0.0.1:{port}") as scavenger,
    ):
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"n1", "n2"})
        releases.may_answer.set()
        await scavenger.reclaim(["n1"])
        found = await asyncio.to_thread(scrape, port)
        assert found["malletrain_idle_nodes",] == 1
        assert found["malletrain_reclaim_seconds_count", "confirmed"] == 1
