"""`malletrain nodes`, `drain` and `resume`: the idle nodes, and nodes that are taken out of use."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from malletrain.cli.jobs.jobs import all_jobs
from malletrain.cli.jobs.naming import complete_node
from malletrain.cli.jobs.waiting_reasons import drains, placeholder_failures, quarantines, slow_nodes
from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow, ListingView, listing, print_listing
from malletrain.cli.shared.output import JsonOption, duration, print_json, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import resources_pb2, scavenger_pb2


@listing
def nodes(*, view: ListingView) -> None:
    """List the idle nodes, their idle age, expected stay, job, pool, GPUs, features; say why no more can be held."""
    with connect() as stubs:
        idle_nodes = stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
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
    rows = [node_row(node, holders.get(node.name, ""), now, slow.get(node.name)) for node in idle_nodes]
    if view.as_json:
        rows += map(quarantined_row, status.quarantined)
    print_listing(NODE_COLUMNS, rows, view, nothing="no idle nodes")


NODE_COLUMNS = (
    Column("node"),
    Column("idle for", rank=2),
    Column("expected stay", rank=4),
    Column("job"),
    Column("pool", rank=3),
    Column("GPUs", rank=5),
    Column("features", rank=6, only_filled=True),
    Column("topology", rank=7, only_filled=True),
)


def node_row(node: resources_pb2.Node, job: str, now: float, slow: dict[str, Any] | None) -> ListingRow:
    """A node with a cell for each of `NODE_COLUMNS`."""
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


def quarantined_row(node: scavenger_pb2.QuarantinedNode) -> ListingRow:
    """A node that is not idle for us, with a cell for each of `NODE_COLUMNS`: rows are sorted by them."""
    cells = [node.name, *("" for _ in NODE_COLUMNS[1:])]
    return ListingRow(cells, lambda: {"name": node.name, "quarantined": to_dict(node)})


_RELEASE_SECONDS = 30.0

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NODE]...", help="Names of nodes.", autocompletion=complete_node)
]


def drain(
    nodes: Names = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All nodes, also those that become idle later: nothing is harvested.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Give nodes back now and leave them alone until `malletrain resume`; exit 1 if some are not confirmed free."""
    names = _names(nodes, everything)
    with connect() as stubs:
        strange = _not_idle(stubs, names)
        request = scavenger_pb2.DrainNodesRequest(nodes=names, all=everything, reason=reason)
        done = stubs.scavenger.DrainNodes(request, timeout=_RELEASE_SECONDS)
    if as_json:
        print_json(to_dict(done))
    else:
        _print_change("drained", names, everything)
        if strange:
            typer.echo(f"not idle: {', '.join(strange)}: drained before, used by others, or is a name wrong?", err=True)
        if done.released:
            typer.echo(f"no process of ours is left on {', '.join(done.released)}")
        if done.unconfirmed:
            typer.echo(f"not confirmed yet: {', '.join(done.unconfirmed)}; ask again", err=True)
    if done.unconfirmed:
        raise typer.Exit(1)


def resume(
    nodes: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="End every drain and quarantine.")] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Use drained and quarantined nodes again."""
    names = _names(nodes, everything)
    with connect() as stubs:
        request = scavenger_pb2.ResumeNodesRequest(nodes=names, all=everything)
        done = stubs.scavenger.ResumeNodes(request, timeout=DEADLINE_SECONDS)
    if as_json:
        print_json(to_dict(done))
    elif done.resumed or done.all_resumed or done.released:
        _print_change("resumed", sorted({*done.resumed, *done.released}), done.all_resumed)
    else:
        typer.echo("nothing of this was drained or quarantined", err=True)


def _not_idle(stubs: ServiceStubs, names: list[str]) -> list[str]:
    listed = stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
    return sorted(set(names) - {node.name for node in listed})


def _print_change(what: str, names: list[str], everything: bool) -> None:
    typer.echo(f"{what}: {', '.join(['all nodes'] * everything + names)}")


def _names(nodes: list[str] | None, everything: bool) -> list[str]:
    if bool(nodes) == everything:
        raise InvalidInputError("NODE", "names of nodes, or --all")
    return nodes or []
