"""`malletrain logs ID`: prints the output of a job's workers."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from malletrain.caller.log_lines import LogLine, followed_log, log_lines, matching, since_ms_of
from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.output import state_name, tell
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.cli.shared.terminal import has_terminal, write_styled
from malletrain.v1 import job_manager_pb2, resources_pb2

_LOOKED_AT = 300
"""Characters at the beginning of a line in which its level stands."""
_LEVEL = re.compile(
    r"\b(?P<error>CRITICAL|FATAL|ERROR|SEVERE|PANIC)\b|\b(?P<warning>WARN|WARNING)\b|\b(?P<debug>DEBUG|TRACE)\b"
    r"|(?:^|[\[<(])\s*(?:(?P<error2>critical|fatal|error)|(?P<warning2>warn|warning)|(?P<debug2>debug))\s*[\]>):]"
)
_GLOG = re.compile(r"([EFW])\d{4} \d\d:\d\d:\d\d")
_RAISED = re.compile(r"(?:Traceback \(most recent call last\):|[\w.]*(?:Error|Exception|Interrupt)(?::|$))")
_WARNED = re.compile(r"\b\w*Warning: ")
_STYLES = {"error": "red", "warning": "yellow", "debug": "dim"}


def style_of(line: str) -> str:
    """The style of a line; empty: none.

    Args:
        line: As "n017 | text".
    """
    text = line.partition(" | ")[2][:_LOOKED_AT]
    if match := _LEVEL.search(text):
        return _STYLES[str(match.lastgroup).rstrip("2")]
    if match := _GLOG.match(text):
        return _STYLES["warning" if match[1] == "W" else "error"]
    if _RAISED.match(text):
        return _STYLES["error"]
    return _STYLES["warning"] if _WARNED.search(text) else ""


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
            _tell_of_waiting(stubs, job_id)
            lines = followed_log(stubs, job_id, tail, tell, since_ms)
        else:
            lines = log_lines(stubs, job_id, tail, since_ms)
        coloured = has_terminal()
        for line in matching(lines, grep, "--grep"):
            _print(line, timestamps, coloured)


def _tell_of_waiting(stubs: ServiceStubs, job_id: str) -> None:
    """Say of a job that has not begun why nothing comes."""
    job = stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS).job
    if job.state in (resources_pb2.JOB_STATE_QUEUED, resources_pb2.JOB_STATE_WAITING):
        tell(f"{job_id} is {state_name(job.state)}: {job.reason}; more comes when it has nodes")


def _print(line: LogLine, timestamps: bool, coloured: bool) -> None:
    text = line.with_time if timestamps else line.text
    style = style_of(line.text) if coloured else ""
    if style:
        write_styled([(text, style)])
    else:
        typer.echo(text)
