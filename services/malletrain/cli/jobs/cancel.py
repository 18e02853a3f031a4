"""`malletrain cancel ID...`: ends jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.cli.jobs.fleet_jobs import is_group, unfinished_members
from malletrain.cli.jobs.job_output import job_dict
from malletrain.cli.shared.output import JsonOption, print_json, state_name
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import job_manager_pb2


def cancel(
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Identifiers of jobs, arrays or fleets.")],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """End jobs, or all of arrays and fleets that have not ended. Their checkpoints stay in their job folders."""
    with connect() as stubs:
        ended = [
            stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
            for name in job_ids
            for job_id in (unfinished_members(stubs, name) if is_group(name) else [name])
        ]
    if as_json:
        print_json([job_dict(job) for job in ended])
        return
    for job in ended:
        typer.echo(f"{job.id} {state_name(job.state)}: {job.reason}")
