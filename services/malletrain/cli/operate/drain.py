"""`malletrain drain` and `malletrain resume`: take nodes out of use, and use them again."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.cli.jobs.completion import complete_node
from malletrain.cli.shared.output import JsonOption, print_json, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import scavenger_pb2

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
        _say("drained", names, everything)
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
        _say("resumed", sorted({*done.resumed, *done.released}), done.all_resumed)
    else:
        typer.echo("nothing of this was drained or quarantined", err=True)


def _not_idle(stubs: ServiceStubs, names: list[str]) -> list[str]:
    listed = stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes
    return sorted(set(names) - {node.name for node in listed})


def _say(what: str, names: list[str], everything: bool) -> None:
    typer.echo(f"{what}: {', '.join(['all nodes'] * everything + names)}")


def _names(nodes: list[str] | None, everything: bool) -> list[str]:
    if bool(nodes) == everything:
        raise InvalidInputError("NODE", "names of nodes, or --all")
    return nodes or []
