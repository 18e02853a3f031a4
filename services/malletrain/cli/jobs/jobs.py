"""`malletrain jobs`: all jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from malletrain.caller.other_names import states_in_words
from malletrain.cli.jobs.job_output import job_dict, parameters_in_words, reason_of
from malletrain.cli.jobs.outlook import (
    ask_services,
    eta_in_words,
    outlook,
    outlook_dict,
    rate_in_words,
    samples_in_words,
)
from malletrain.cli.jobs.waiting_reasons import tell_why_jobs_wait
from malletrain.cli.shared.layout import Column, ListingCell, first_line
from malletrain.cli.shared.listing import ListingRow, ListingView, Output, listing, print_listing
from malletrain.cli.shared.output import duration, state_cell, state_name
from malletrain.cli.shared.owner_output import owner_shares, print_owners, quota_in_words
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.cli.shared.terminal import has_terminal
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.observer.eta import Outlook
from malletrain.runtime.errors import NotFoundError, quote
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.paging import all_pages
from malletrain.v1 import access_pb2, job_manager_pb2, resources_pb2


def complete_state(incomplete: str) -> list[str]:
    """States of jobs."""
    names = (state_name(value).lower() for value in resources_pb2.JobState.values() if value)
    return [name for name in names if name.startswith(incomplete.lower())]


@listing
def jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only jobs in this state, e.g. running; may be repeated.", autocompletion=complete_state),
    ] = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only jobs that this user submitted.")] = "",
    name: Annotated[str, typer.Option(help="Only jobs of this name.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only jobs that you submitted.")] = False,
    array: Annotated[str, typer.Option(metavar="ID", help="Only jobs of this array, e.g. a000012, or its name.")] = "",
    owners: Annotated[
        bool, typer.Option("--owners", help="The owners instead of the jobs: what they use, have used, and weigh.")
    ] = False,
    *,
    view: ListingView,
) -> None:
    """List jobs, oldest first."""
    if mine and owner:
        raise typer.BadParameter("expected one of --mine and --owner", param_hint="--mine")
    if owners and (mine or owner or name or state or array):
        raise typer.BadParameter("expected no option that chooses jobs beside it", param_hint="--owners")
    with connect() as stubs:
        if owners:
            print_owners(owner_shares(stubs), view)
            return
        states = [parse_state(name) for name in state or []]
        pages = list(job_pages(stubs, states, own_name(stubs) if mine else owner, name))
        listed = [job for page in pages for job in page.jobs]
        if array and not (listed := of_array(stubs, listed, array)):
            raise NotFoundError(f"no such job of array {quote(array)} is known")
        if view.output is Output.NAME and not view.sort:  # nothing but JobManager is asked
            print_listing(_COLUMNS[:1], [ListingRow((job.id,), dict) for job in listed], view, nothing="no jobs")
            return
        quota = pages[-1].burst_buffer
        known = ask_services(stubs, listed)
        tell_why_jobs_wait(stubs, listed)
    now, several = time.time(), len({job.owner for job in listed}) > 1
    rows = [_row(job, outlook(job, known), now, several_owners=several) for job in listed]
    print_listing(_COLUMNS, rows, view, nothing="no jobs")
    if view.output not in (Output.TABLE, Output.WIDE):
        return
    if any(map(_unsure, listed)):
        typer.echo(
            "?: it reports no position, and these are the samples since its last start from disk, if known at all",
            err=not has_terminal(),
        )
    if quota.granted_gb or quota.held_gb:
        typer.echo(quota_in_words(quota), err=not has_terminal())


_COLUMNS = (
    Column("job"),
    Column("array", rank=3, only_filled=True),
    Column("parameters", rank=3, cut=True, only_filled=True),
    Column("fleet", rank=3, only_filled=True),
    Column("owner", rank=5, only_filled=True),
    Column("name", rank=1, cut=True),
    Column("state"),
    Column("nodes", rank=2, right=True),
    Column("samples", rank=4, right=True),
    Column("samples/s", rank=6, right=True),
    Column("ETA", rank=4),
    Column("age", rank=5),
    Column("project", only_wide=True),
    Column("weight", only_wide=True, right=True),
    Column("rescales", only_wide=True, right=True),
    Column("preemptions", only_wide=True, right=True),
    Column("restarts", only_wide=True, right=True),
    Column("burst buffer", rank=7, only_filled=True),
    Column("reason", rank=8, cut=True),
)


def _row(job: resources_pb2.Job, seen: Outlook, now: float, *, several_owners: bool) -> ListingRow:
    """A job with a cell for each of `_COLUMNS`."""
    age = max(0.0, now - unix_seconds(job.create_time))
    cells: list[ListingCell | str] = [
        job.id,
        job.array_id,
        parameters_in_words(job.spec.array_parameters),
        job.fleet_id,
        ListingCell(job.owner if several_owners else "", job.owner),
        job.spec.name,
        state_cell(job.state),
        f"{len(job.confirmed_nodes)}/{len(job.wanted_nodes)}",
        ListingCell(samples_in_words(seen, job.spec.target_samples) + ("?" if _unsure(job) else ""), seen.samples),
        ListingCell(rate_in_words(seen), "" if seen.rate is None else seen.rate),
        "" if job.HasField("end_time") else eta_in_words(seen),
        ListingCell(duration(age), round(age, 3)),
        job.spec.project,
        ListingCell(f"{job.spec.weight * (job.share_weight or 1.0):.3g}", job.spec.weight * (job.share_weight or 1.0)),
        ListingCell(f"{job.rescales:,}", job.rescales),
        ListingCell(f"{job.preemptions:,}", job.preemptions),
        ListingCell(f"{job.restarts:,}", job.restarts),
        burst_buffer_in_words(job.spec.burst_buffer_gb) if job.spec.burst_buffer_gb else "",
        first_line(reason_of(job)),
    ]
    return ListingRow(cells, lambda: job_dict(job) | {"outlook": outlook_dict(seen)})


def of_array(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job], array: str) -> list[resources_pb2.Job]:
    """The jobs of an array, by its identifier or its name; of several the caller's newest, or else others'."""
    if members := [job for job in jobs if job.array_id == array]:
        return members
    named = [job for job in jobs if job.array_id and job.spec.name == array]
    if not named:
        return []
    own = own_name(stubs)
    newest = ([job for job in named if job.owner == own] or named)[-1].array_id
    return [job for job in jobs if job.array_id == newest]


def _unsure(job: resources_pb2.Job) -> bool:
    """Whether its samples are counted without knowing from where it went on."""
    return job.samples > 0 and not job.samples_known


def own_name(stubs: ServiceStubs) -> str:
    """The user whom the services take the caller for."""
    return stubs.access.GetIdentity(access_pb2.GetIdentityRequest(), timeout=DEADLINE_SECONDS).identity.user


def all_jobs(
    stubs: ServiceStubs, states: Sequence[resources_pb2.JobState.ValueType] = (), owner: str = "", name: str = ""
) -> Iterator[resources_pb2.Job]:
    """Every job, page by page.

    Args:
        stubs: The services.
        states: Only jobs in these states; empty: in all.
        owner: Only jobs of this owner; empty: of all.
        name: Only jobs of this name; empty: of all. A JobManager of an earlier version takes no notice of it.
    """
    for page in job_pages(stubs, states, owner, name):
        yield from page.jobs


def job_pages(
    stubs: ServiceStubs, states: Sequence[resources_pb2.JobState.ValueType] = (), owner: str = "", name: str = ""
) -> Iterator[job_manager_pb2.ListJobsResponse]:
    """The pages of `all_jobs`, at least one. Each tells the quota of burst buffer, too."""
    request = job_manager_pb2.ListJobsRequest(states=states, owner=owner, name=name)
    yield from all_pages(stubs.job_manager.ListJobs, request, timeout=DEADLINE_SECONDS)


def parse_state(name: str) -> resources_pb2.JobState.ValueType:
    """The state that a user means by `running`."""
    full = f"JOB_STATE_{name.upper()}"
    names = [known for known in resources_pb2.JobState.keys() if not known.endswith("UNSPECIFIED")]  # noqa: SIM118
    if full not in names:
        known = [entry.removeprefix("JOB_STATE_").lower() for entry in names]
        raise typer.BadParameter(f"expected {states_in_words(name, known)}, got {name!r}", param_hint="--state")
    return resources_pb2.JobState.Value(full)
