"""`malletrain logs ID`: prints the output of a job's workers."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.cli.stubs import DEADLINE_SECONDS, connect
from malletrain.v1 import job_manager_pb2


def logs(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Job identifier, e.g. j000001.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Only the last lines; 0: all.")] = 0,
) -> None:
    """Print a job's log, each line with the name of its node."""
    request = job_manager_pb2.StreamLogsRequest(job_id=job_id, follow=follow, tail_lines=tail)
    with connect() as stubs:
        for response in stubs.job_manager.StreamLogs(request, timeout=None if follow else 6 * DEADLINE_SECONDS):
            for line in response.lines:
                typer.echo(line)
