"""`malletrain cancel ID...`: ends jobs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.cli.jobs.completion import complete_job
from malletrain.cli.jobs.job_output import job_dict
from malletrain.cli.jobs.naming import unfinished_jobs_of
from malletrain.cli.shared.output import JsonOption, print_json, state_name
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import job_manager_pb2


def cancel(
    job_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Jobs (also by their names), arrays or fleets.",
            autocompletion=complete_job,
        ),
    ],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """End jobs, or all of arrays and fleets that have not ended. Their checkpoints stay in their job folders."""
    with connect() as stubs:
        meant = unfinished_jobs_of(stubs, job_ids, time.time())
        ended = [
            stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
            for job_id in meant
        ]
    if as_json:
        print_json([job_dict(job) for job in ended])
        return
    for job in ended:
        typer.echo(f"{job.id} {state_name(job.state)}: {job.reason}")
