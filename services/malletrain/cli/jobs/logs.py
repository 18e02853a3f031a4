"""`malletrain logs ID`: prints the output of a job's workers."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterable
from typing import Annotated

import typer

from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.reconnecting import across_restarts
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import job_manager_pb2


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
        if follow:
            stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE_SECONDS)
            _follow(stubs, job_id, tail, wanted)
            return
        request = job_manager_pb2.StreamLogsRequest(job_id=job_id, tail_lines=tail)
        for response in stubs.job_manager.StreamLogs(request, timeout=6 * DEADLINE_SECONDS):
            _print(response.lines, wanted)


def _matcher(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise InvalidInputError("--grep", f"a regular expression ({error})", grep) from None


def _print(lines: Iterable[str], wanted: re.Pattern[str]) -> None:
    for line in lines:
        if wanted.search(line):
            typer.echo(line)


def _follow(stubs: ServiceStubs, job_id: str, tail: int, wanted: re.Pattern[str]) -> None:
    """Print the log until the job has ended. What a new JobManager is asked for begins where the printed lines end."""
    positions: dict[str, int] = {}
    missing = tail

    def parts() -> Generator[job_manager_pb2.StreamLogsResponse, None, None]:
        request = job_manager_pb2.StreamLogsRequest(job_id=job_id, follow=True, tail_lines=missing, positions=positions)
        stream = stubs.job_manager.StreamLogs(request)
        earlier_version = True  # of JobManager: it sends neither positions nor parts without lines, nor says the end
        try:
            for part in stream:
                earlier_version = earlier_version and bool(part.lines) and not part.positions
                yield part
        finally:
            stream.cancel()
        if earlier_version:
            yield job_manager_pb2.StreamLogsResponse(ended=True)

    for part in across_restarts("JobManager", parts):
        _print(part.lines, wanted)
        positions.update(part.positions)
        missing = 0  # the first part says where the last lines begin
        if part.ended:
            return
