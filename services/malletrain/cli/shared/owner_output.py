"""How the command shows owners: what they use, what they have used lately, and what that makes their jobs weigh."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from malletrain.cli.shared.burst_buffer import quota_in_words
from malletrain.cli.shared.output import print_json, print_table, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.v1 import allocator_pb2, job_manager_pb2, resources_pb2

_HOUR_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


def owner_shares(stubs: ServiceStubs) -> job_manager_pb2.ListOwnersResponse:
    """The owners, by name."""
    found: job_manager_pb2.ListOwnersResponse = stubs.job_manager.ListOwners(
        job_manager_pb2.ListOwnersRequest(), timeout=DEADLINE_SECONDS
    )
    return found


def print_owners(found: job_manager_pb2.ListOwnersResponse, *, as_json: bool) -> None:
    """Print the owners as a table or as JSON."""
    if as_json:
        print_json(to_dict(found))
        return
    rows = [
        [
            entry.owner,
            f"{entry.admitted_jobs}/{entry.jobs}",
            str(entry.nodes),
            f"{entry.used_node_seconds / _HOUR_SECONDS:,.1f}",
            f"{entry.used_fraction:.0%}",
            f"{entry.weight:.2f}",
        ]
        for entry in found.owners
    ]
    columns = ["owner", "jobs in plans", "nodes", "decayed node-hours", "of all in plans", "weight"]
    granted = found.burst_buffer.granted_gb or found.burst_buffer.held_gb
    if granted:
        columns.append("burst buffer")
        for entry, row in zip(found.owners, rows, strict=True):
            row.append(burst_buffer_in_words(entry.burst_buffer_gb))
    print_table(columns, rows)
    if granted:
        typer.echo(quota_in_words(found.burst_buffer))
    if found.half_life_seconds:
        typer.echo(f"half of a use is left after {found.half_life_seconds / _DAY_SECONDS:g} days")
    else:
        typer.echo("there is no fair share (job_manager.fair_share_half_life_seconds = 0)")


def weight_in_words(job: resources_pb2.Job, owners: Sequence[job_manager_pb2.OwnerShare]) -> str:
    """A job's weight, and where it comes from.

    Args:
        job: The job.
        owners: The owners who have jobs or whose use still counts.
    """
    share = job.share_weight or 1.0
    if share == 1.0:
        return f"{job.spec.weight:g}"
    text = f"{job.spec.weight * share:.3g}: {job.spec.weight:g} as submitted"
    taking_part = [entry for entry in owners if entry.admitted_jobs]
    mine = next((entry for entry in taking_part if entry.owner == job.owner), None)
    if mine is None or len(taking_part) < 2:
        return f"{text}, times {share:.3g} for fair share"
    mean = f"{mine.weight / share:.3g}"
    if mean != "1":
        text += f", divided by {mean}, the mean of {job.owner}'s jobs"
    text += f", times {mine.weight:.3g} for fair share"
    equal = 1 / len(taking_part)
    return f"{text} ({job.owner} has {mine.used_fraction:.0%} of the decayed use, an equal share is {equal:.0%})"


def plan_weight(demand: allocator_pb2.JobDemand) -> str:
    """The weight of a job of a plan, and the part of it that is fair share."""
    share = demand.share_weight or 1.0
    return f"{demand.weight:.3g}" if share == 1.0 else f"{demand.weight:.3g} ({demand.weight / share:g} × {share:.3g})"
