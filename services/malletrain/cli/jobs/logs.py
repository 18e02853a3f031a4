"""`malletrain logs ID`: prints the output of a job's workers."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.caller.following import followed_log, log_lines
from malletrain.cli.shared.stubs import connect
from malletrain.cli.shared.telling import tell


def logs(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Job identifier, e.g. j000001.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job has ended, over restarts of JobManager, too.")
    ] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Only the last lines; 0: all.")] = 0,
) -> None:
    """Print a job's log, each line with the name of its node."""
    with connect() as stubs:
        lines = followed_log(stubs, job_id, tail, tell) if follow else log_lines(stubs, job_id, tail)
        for line in lines:
            typer.echo(line)
