"""`malletrain nodes`: the idle nodes and who has them."""

from __future__ import annotations

import time
from typing import Annotated

from malletrain.cli.jobs import all_jobs
from malletrain.cli.output import JsonOption, ago, duration, print_json, print_table, to_dict
from malletrain.cli.peers import DEADLINE_SECONDS, connect
from malletrain.v1 import scavenger_pb2


def nodes(as_json: Annotated[bool, JsonOption] = False) -> None:
    """List the idle nodes, their idle age, expected stay, job, pool and GPUs."""
    with connect() as peers:
        found = peers.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
        holders = {name: job.id for job in all_jobs(peers, []) for name in job.commanded_nodes}
    if as_json:
        print_json([to_dict(node) | {"jobId": holders.get(node.name, "")} for node in found])
        return
    now = time.time()
    rows = [
        (
            node.name,
            ago(node.idle_since, now),
            duration(node.expected_stay_seconds) if node.expected_stay_seconds else "unknown",
            holders.get(node.name, "-"),
            node.pool or "-",
            f"{node.gpus} {node.gpu_type}".strip() if node.gpus else "-",
        )
        for node in found
    ]
    print_table(("node", "idle for", "expected stay", "job", "pool", "GPUs"), rows)
