"""`malletrain logs ID`: prints the output of a job's workers."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.caller.log_lines import LogLine, followed_log, log_lines, matching, since_ms_of
from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.log_levels import style_of
from malletrain.cli.shared.stubs import connect
from malletrain.cli.shared.telling import tell
from malletrain.cli.shared.terminal import has_terminal, write_styled


def logs(
    job_id: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job has ended, over restarts of JobManager, too.")
    ] = False,
    grep: Annotated[
        str, typer.Option(help="Only lines in which this regular expression is found; with --tail, of the last lines.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only lines of the last 90s, 5m, 2h or 1d, or since 2026-11-28T09:30.")
    ] = "",
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Only the last lines; 0: all.")] = 0,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="When each line was written, in front of it.")
    ] = False,
) -> None:
    """Print a job's log by time, each line with the name of its node. On terminals, levels have colours."""
    since_ms = since_ms_of(since, time.time(), "--since")
    matching((), grep, "--grep")  # a mistake is told before anything is asked
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        if follow:
            lines = followed_log(stubs, job_id, tail, tell, since_ms)
        else:
            lines = log_lines(stubs, job_id, tail, since_ms)
        coloured = has_terminal()
        for line in matching(lines, grep, "--grep"):
            _print(line, timestamps, coloured)


def _print(line: LogLine, timestamps: bool, coloured: bool) -> None:
    text = line.with_time if timestamps else line.text
    style = style_of(line.text) if coloured else ""
    if style:
        write_styled([(text, style)])
    else:
        typer.echo(text)
