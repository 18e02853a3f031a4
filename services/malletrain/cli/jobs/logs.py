"""`malletrain logs ID`: prints the output of a job's workers."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from malletrain.caller.following import followed_log, log_lines
from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.stubs import connect
from malletrain.cli.shared.telling import tell
from malletrain.runtime.errors import InvalidInputError


def logs(
    job_id: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job has ended, over restarts of JobManager, too.")
    ] = False,
    grep: Annotated[
        str, typer.Option(help="Only lines in which this regular expression is found; with --tail, of the last lines.")
    ] = "",
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Only the last lines; 0: all.")] = 0,
) -> None:
    """Print a job's log, each line with the name of its node."""
    wanted = _matcher(grep)
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        lines = followed_log(stubs, job_id, tail, tell) if follow else log_lines(stubs, job_id, tail)
        for line in lines:
            if wanted.search(line):
                typer.echo(line)


def _matcher(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise InvalidInputError("--grep", f"a regular expression ({error})", grep) from None
