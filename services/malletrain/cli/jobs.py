"""`malletrain jobs`: all jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from malletrain.cli.output import JsonOption, ago, print_json, print_table, shorten, state_name, to_dict
from malletrain.cli.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.v1 import job_manager_pb2, resources_pb2

_NAME_CELLS = 32


def jobs(
    state: Annotated[
        list[str] | None, typer.Option(help="Only jobs in this state, e.g. running; may be repeated.")
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """List jobs, oldest first."""
    states = [parse_state(name) for name in state or []]
    with connect() as stubs:
        found = list(all_jobs(stubs, states))
    if as_json:
        print_json([to_dict(job) for job in found])
        return
    now = time.time()
    rows = [
        (
            job.id,
            shorten(job.spec.name, _NAME_CELLS),
            state_name(job.state),
            f"{len(job.confirmed_nodes)}/{len(job.wanted_nodes)}",
            f"{job.samples:,}" + (f" / {job.spec.target_samples:,}" if job.spec.target_samples else ""),
            ago(job.create_time, now),
            job.reason,
        )
        for job in found
    ]
    print_table(("job", "name", "state", "nodes", "samples", "age", "reason"), rows, one_line=True)


def all_jobs(stubs: ServiceStubs, states: list[resources_pb2.JobState.ValueType]) -> Iterator[resources_pb2.Job]:
    """Every job, page by page."""
    token = ""
    while True:
        request = job_manager_pb2.ListJobsRequest(page_token=token, states=states)
        response = stubs.job_manager.ListJobs(request, timeout=DEADLINE_SECONDS)
        yield from response.jobs
        token = response.next_page_token
        if not token:
            return


def parse_state(name: str) -> resources_pb2.JobState.ValueType:
    """The state that a user means by `running`."""
    full = f"JOB_STATE_{name.upper()}"
    names = [known for known in resources_pb2.JobState.keys() if not known.endswith("UNSPECIFIED")]  # noqa: SIM118
    if full not in names:
        known = ", ".join(entry.removeprefix("JOB_STATE_").lower() for entry in names)
        raise typer.BadParameter(f"expected one of {known}, got {name!r}", param_hint="--state")
    return resources_pb2.JobState.Value(full)
