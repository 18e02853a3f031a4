"""`malletrain nodes`: the idle nodes and which jobs use them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import typer

from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.jobs.waiting_reasons import drains, placeholder_failures, quarantines, slow_nodes
from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow, ListingView, listing, print_listing
from malletrain.cli.shared.output import duration, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import resources_pb2, scavenger_pb2


@listing
def nodes(*, view: ListingView) -> None:
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
    slow = {node.name: to_dict(node) for node in status.slow}
    rows = [_row(node, holders.get(node.name, ""), now, slow.get(node.name)) for node in found]
    if view.as_json:
        rows += [ListingRow(_quarantined_cells(node), partial(_quarantined_dict, node)) for node in status.quarantined]
    print_listing(_COLUMNS, rows, view, nothing="no idle nodes")


_COLUMNS = (
    Column("node"),
    Column("idle for", rank=2),
    Column("expected stay", rank=4),
    Column("job"),
    Column("pool", rank=3),
    Column("GPUs", rank=5),
    Column("features", rank=6, only_filled=True),
    Column("topology", rank=7, only_filled=True),
)


def _row(node: resources_pb2.Node, job: str, now: float, slow: dict[str, Any] | None) -> ListingRow:
    """A node with a cell for each of `_COLUMNS`."""
    idle = max(0.0, now - unix_seconds(node.idle_since))
    stay = node.expected_stay_seconds
    cells: list[ListingCell | str] = [
        node.name,
        ListingCell(duration(idle), round(idle, 3)),
        ListingCell(duration(stay), stay) if stay else "unknown",
        job or "-",
        node.pool or "-",
        f"{node.gpus} {node.gpu_type}".strip() if node.gpus else "-",
        ",".join(node.features) or "-",
        "/".join(node.topology) or "-",
    ]
    return ListingRow(cells, lambda: to_dict(node) | {"jobId": job} | ({"slow": slow} if slow else {}))


def _quarantined_cells(node: scavenger_pb2.QuarantinedNode) -> list[ListingCell | str]:
    """A node that is not idle for us, with a cell for each of `_COLUMNS`: rows are sorted by them."""
    return [node.name, *("" for _ in _COLUMNS[1:])]


def _quarantined_dict(node: scavenger_pb2.QuarantinedNode) -> dict[str, Any]:
    return {"name": node.name, "quarantined": to_dict(node)}
