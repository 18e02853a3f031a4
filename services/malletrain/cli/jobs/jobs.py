"""`malletrain jobs`: all jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from malletrain.caller.job_array import in_words
from malletrain.cli.jobs.job_output import job_dict, reason_of
from malletrain.cli.jobs.outlook import ask, eta_in_words, outlook, outlook_dict, rate_in_words, samples_in_words
from malletrain.cli.jobs.waiting_reasons import tell_why_jobs_wait
from malletrain.cli.shared.burst_buffer import quota_in_words, quota_of
from malletrain.cli.shared.output import JsonOption, ago, print_json, print_table, shorten, state_name
from malletrain.cli.shared.owner_output import owner_shares, print_owners
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.runtime.errors import NotFoundError, quoted
from malletrain.runtime.paging import all_pages
from malletrain.v1 import access_pb2, job_manager_pb2, resources_pb2

_NAME_CELLS = 32


def jobs(
    state: Annotated[
        list[str] | None, typer.Option(help="Only jobs in this state, e.g. running; may be repeated.")
    ] = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only jobs that this user submitted.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only jobs that you submitted.")] = False,
    array: Annotated[str, typer.Option(metavar="ID", help="Only jobs of this array, e.g. a000012.")] = "",
    owners: Annotated[
        bool, typer.Option("--owners", help="The owners instead of the jobs: what they use, have used, and weigh.")
    ] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """List jobs, oldest first."""
    if mine and owner:
        raise typer.BadParameter("expected one of --mine and --owner", param_hint="--mine")
    if owners and (mine or owner or state or array):
        raise typer.BadParameter("expected no other option than --json beside it", param_hint="--owners")
    if owners:
        with connect() as stubs:
            print_owners(owner_shares(stubs), as_json=as_json)
        return
    states = [parse_state(name) for name in state or []]
    with connect() as stubs:
        found = list(all_jobs(stubs, states, own_name(stubs) if mine else owner))
        if array and not (found := [job for job in found if job.array_id == array]):
            raise NotFoundError(f"no such job of array {quoted(array)} is known")
        quota = quota_of(stubs)
        known = ask(stubs, found)
        tell_why_jobs_wait(stubs, found)
    outlooks = [outlook(job, known) for job in found]
    if as_json:
        listed = zip(found, outlooks, strict=True)
        print_json([job_dict(job) | {"outlook": outlook_dict(seen)} for job, seen in listed])
        return
    now = time.time()
    rows = [
        [
            job.id,
            shorten(job.spec.name, _NAME_CELLS),
            state_name(job.state),
            f"{len(job.confirmed_nodes)}/{len(job.wanted_nodes)}",
            samples_in_words(seen, job.spec.target_samples) + ("?" if _unsure(job) else ""),
            rate_in_words(seen),
            "" if job.HasField("end_time") else eta_in_words(seen),
            ago(job.create_time, now),
            reason_of(job),
        ]
        for job, seen in zip(found, outlooks, strict=True)
    ]
    columns = ["job", "name", "state", "nodes", "samples", "samples/s", "ETA", "age", "reason"]
    if len({job.owner for job in found}) > 1:
        columns.insert(1, "owner")
        for job, row in zip(found, rows, strict=True):
            row.insert(1, job.owner)
    if any(job.fleet_id for job in found):
        columns.insert(1, "fleet")
        for job, row in zip(found, rows, strict=True):
            row.insert(1, job.fleet_id)
    if any(job.array_id for job in found):
        columns[1:1] = ["array", "parameters"]
        for job, row in zip(found, rows, strict=True):
            row[1:1] = [job.array_id, shorten(in_words(job.spec.array_parameters), _NAME_CELLS)]
    if any(job.spec.burst_buffer_gb for job in found):
        columns.insert(-2, "burst buffer")
        for job, row in zip(found, rows, strict=True):
            row.insert(-2, burst_buffer_in_words(job.spec.burst_buffer_gb) if job.spec.burst_buffer_gb else "")
    print_table(columns, rows, one_line=True)
    if any(map(_unsure, found)):
        typer.echo(
            "?: it reports no position, and these are the samples since its last start from disk, if known at all"
        )
    if quota.granted_gb or quota.held_gb:
        typer.echo(quota_in_words(quota))


def _unsure(job: resources_pb2.Job) -> bool:
    """Whether its samples are counted without knowing from where it went on."""
    return job.samples > 0 and not job.samples_known


def own_name(stubs: ServiceStubs) -> str:
    """The user whom the services take the caller for."""
    return stubs.access.GetIdentity(access_pb2.GetIdentityRequest(), timeout=DEADLINE_SECONDS).identity.user


def all_jobs(
    stubs: ServiceStubs, states: Sequence[resources_pb2.JobState.ValueType] = (), owner: str = ""
) -> Iterator[resources_pb2.Job]:
    """Every job, page by page.

    Args:
        stubs: The services.
        states: Only jobs in these states; empty: in all.
        owner: Only jobs of this owner; empty: of all.
    """
    request = job_manager_pb2.ListJobsRequest(states=states, owner=owner)
    for page in all_pages(stubs.job_manager.ListJobs, request, timeout=DEADLINE_SECONDS):
        yield from page.jobs


def parse_state(name: str) -> resources_pb2.JobState.ValueType:
    """The state that a user means by `running`."""
    full = f"JOB_STATE_{name.upper()}"
    names = [known for known in resources_pb2.JobState.keys() if not known.endswith("UNSPECIFIED")]  # noqa: SIM118
    if full not in names:
        known = ", ".join(entry.removeprefix("JOB_STATE_").lower() for entry in names)
        raise typer.BadParameter(f"expected one of {known}, got {name!r}", param_hint="--state")
    return resources_pb2.JobState.Value(full)
