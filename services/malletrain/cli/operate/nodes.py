"""`malletrain nodes`: the idle nodes and which jobs use them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.jobs.waiting_reasons import drains, placeholder_failures, quarantines, slow_nodes
from malletrain.cli.shared.output import JsonOption, ago, duration, print_json, print_table, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import scavenger_pb2


def nodes(as_json: Annotated[bool, JsonOption] = False) -> None:
    """List the idle nodes, their idle age, expected stay, job, pool, GPUs, features; say why no more can be held."""
    with connect() as stubs:
        found = stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
        status = stubs.scavenger.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=DEADLINE_SECONDS)
        holders = {name: job.id for job in all_jobs(stubs) for name in job.commanded_nodes}
    now = time.time()
    for line in [
        *placeholder_failures(status.placeholders, now),
        *drains(status.drained, now),
        *quarantines(status.quarantined, now),
        *slow_nodes(status.slow),
    ]:
        typer.echo(line, err=True)
    if as_json:
        slow = {node.name: to_dict(node) for node in status.slow}
        idle = [
            to_dict(node)
            | {"jobId": holders.get(node.name, "")}
            | ({"slow": slow[node.name]} if node.name in slow else {})
            for node in found
        ]
        print_json([*idle, *({"name": node.name, "quarantined": to_dict(node)} for node in status.quarantined)])
        return
    with_features = any(node.features for node in found)
    with_topology = any(node.topology for node in found)
    rows = [
        (
            node.name,
            ago(node.idle_since, now),
            duration(node.expected_stay_seconds) if node.expected_stay_seconds else "unknown",
            holders.get(node.name, "-"),
            node.pool or "-",
            f"{node.gpus} {node.gpu_type}".strip() if node.gpus else "-",
            *([",".join(node.features) or "-"] if with_features else []),
            *(["/".join(node.topology) or "-"] if with_topology else []),
        )
        for node in found
    ]
    features = ["features"] if with_features else []
    topology = ["topology"] if with_topology else []
    print_table(("node", "idle for", "expected stay", "job", "pool", "GPUs", *features, *topology), rows)
