"""How the command shows owners: what they use, what they have used lately, and what that makes their jobs weigh."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import typer

from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow, ListingView, Output, print_listing
from malletrain.cli.shared.output import print_json, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.cli.shared.terminal import has_terminal
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.runtime.messages import job_state_of
from malletrain.v1 import allocator_pb2, job_manager_pb2, resources_pb2


def quota_in_words(quota: job_manager_pb2.BurstBufferQuota) -> str:
    """A line about the quota."""
    held, granted, free = map(burst_buffer_in_words, (quota.held_gb, quota.granted_gb, quota.free_gb))
    return f"burst buffer: jobs hold {held} of {granted}, {free} are free"


def request_in_words(job: resources_pb2.Job) -> str:
    """What a job asks for, and whether it has it."""
    if job.admitted:
        holds = "held until its end"
    elif job_state_of(job.state).final:
        holds = "given back"
    else:
        holds = "not held yet"
    if job.passed_over:
        holds += f", passed over {job.passed_over} {'time' if job.passed_over == 1 else 'times'}"
    return f"{burst_buffer_in_words(job.spec.burst_buffer_gb)}, {holds}"


_HOUR_SECONDS = 3600.0
_DAY_SECONDS = 86_400.0


def owner_shares(stubs: ServiceStubs) -> job_manager_pb2.ListOwnersResponse:
    """The owners, by name."""
    owners: job_manager_pb2.ListOwnersResponse = stubs.job_manager.ListOwners(
        job_manager_pb2.ListOwnersRequest(), timeout=DEADLINE_SECONDS
    )
    return owners


_COLUMNS = (
    Column("owner"),
    Column("jobs in plans"),
    Column("nodes", right=True),
    Column("decayed node-hours", rank=2, right=True),
    Column("of all in plans", rank=3, right=True),
    Column("weight", rank=1, right=True),
    Column("burst buffer", rank=4, only_filled=True),
)


def print_owners(owners: job_manager_pb2.ListOwnersResponse, view: ListingView) -> None:
    """Print the owners."""
    if view.as_json:
        print_json(to_dict(owners))
        return
    granted = owners.burst_buffer.granted_gb or owners.burst_buffer.held_gb
    rows = [
        ListingRow(_owner_cells(entry, with_burst_buffer=bool(granted)), partial(to_dict, entry))
        for entry in owners.owners
    ]
    print_listing(_COLUMNS, rows, view, nothing="no owners")
    if view.output not in (Output.TABLE, Output.WIDE):
        return
    in_a_pipe = not has_terminal()  # what is no row goes beside the rows
    if granted:
        typer.echo(quota_in_words(owners.burst_buffer), err=in_a_pipe)
    if owners.half_life_seconds:
        typer.echo(
            f"half of a use is left after {owners.half_life_seconds / _DAY_SECONDS:g} days", err=not has_terminal()
        )
    else:
        typer.echo("there is no fair share (job_manager.fair_share_half_life_seconds = 0)", err=in_a_pipe)


def _owner_cells(entry: job_manager_pb2.OwnerShare, *, with_burst_buffer: bool) -> list[ListingCell | str]:
    return [
        entry.owner,
        f"{entry.admitted_jobs}/{entry.jobs}",
        ListingCell(str(entry.nodes), entry.nodes),
        ListingCell(f"{entry.used_node_seconds / _HOUR_SECONDS:,.1f}", entry.used_node_seconds / _HOUR_SECONDS),
        ListingCell(f"{entry.used_fraction:.0%}", entry.used_fraction),
        ListingCell(f"{entry.weight:.2f}", entry.weight),
        burst_buffer_in_words(entry.burst_buffer_gb) if with_burst_buffer else "",
    ]


def weight_in_words(job: resources_pb2.Job, owners: Sequence[job_manager_pb2.OwnerShare]) -> str:
    """A job's weight, and where it comes from."""
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
