"""`malletrain set ID... --weight W`: changes what may be changed of jobs that have not ended."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.cli.jobs.completion import complete_job
from malletrain.cli.jobs.fleet_jobs import is_group, unfinished_members
from malletrain.cli.jobs.job_output import job_dict
from malletrain.cli.jobs.naming import unfinished_job_of
from malletrain.cli.shared.output import JsonOption, print_json
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import job_manager_pb2


def set(  # the verb's name
    job_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Jobs (also by their names), arrays or fleets.",
            autocompletion=complete_job,
        ),
    ],
    weight: Annotated[float, typer.Option(help="Priority weight from now on, 0.000001 to 1000000.")],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Change the weight of jobs: `malletrain set resnet --weight 4`. The next plan goes by it."""
    with connect() as stubs:
        meant = [
            job_id
            for name in job_ids
            for job_id in (
                unfinished_members(stubs, name) if is_group(name) else [unfinished_job_of(stubs, name, time.time())]
            )
        ]
        requests = [job_manager_pb2.UpdateJobRequest(job_id=job_id, weight=weight) for job_id in meant]
        changed = [stubs.job_manager.UpdateJob(request, timeout=DEADLINE_SECONDS).job for request in requests]
    if as_json:
        print_json([job_dict(job) for job in changed])
        return
    for job in changed:
        typer.echo(f"{job.id} weight {job.spec.weight:g}")
