"""A Scavenger that holds nodes of a real batch scheduler."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from malletrain.v1 import scavenger_pb2
from tests.scavenger.running import Running, releasing, running_scavenger
from tests.schedulers.batch_cluster import BatchCluster
from tests.support.ports import free_port


@asynccontextmanager
async def holding(
    cluster: BatchCluster, folder: Path, units_of_a_node: int = 1, **hold: object
) -> AsyncIterator[Running]:
    """One that has work for all nodes.

    Args:
        cluster: The scheduler.
        folder: For its state: the same one is the same installation.
        units_of_a_node: How many of its GPUs are used one by one; 1: it is used as a whole.
        hold: Settings of placeholders that are not as most tests want them.
    """
    how = {
        "queue": "scavenge",
        "agents_address": f"{cluster.head}:{free_port()}",
        "listen": "0.0.0.0",
        "python": sys.executable,
        "grace_seconds": 0.5,
        "standby_memory_mib": 0,
        "backoff_seconds": 1,
        "backoff_max_seconds": 4,
        "refusal_seconds": 0.5,
        "calm_seconds": 0,
        **hold,
    }
    section = {"source": cluster.name, "debounce_seconds": 0, cluster.name: {**cluster.source, "hold": how}}
    async with (
        releasing(units_of_a_node * len(cluster.nodes)) as (_, job_manager),
        running_scavenger(folder, section, job_manager) as scavenger,
    ):
        yield scavenger


async def query_error(scavenger: Running, name: str) -> str:
    """What was wrong with the last answer to a query; empty if nothing was."""
    status = await scavenger.stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=10)
    return next(str(query.error) for query in status.queries if query.query == name)
