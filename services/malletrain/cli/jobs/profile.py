"""`malletrain profile ID`: measures a job's scaling curve."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.output import JsonOption, print_json, to_dict
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.v1 import profiler_pb2

_POLL_SECONDS = 1.0


def profile(
    job_id: JobArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done, and print its progress.")] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Measure how a job scales, from the largest available scale downwards. The job trains meanwhile."""
    with connect() as stubs:
        job_id = job_of(stubs, job_id, time.time())
        request = profiler_pb2.StartProfileRequest(job_id=job_id)
        found = stubs.profiler.StartProfile(request, timeout=DEADLINE_SECONDS).profile
        if wait:
            found = _wait(stubs, job_id, quiet=as_json)
    if as_json:
        print_json(to_dict(found))
        return
    typer.echo(f"{job_id}: {state_of(found.run)}: {found.run.reason}")


def state_of(run: profiler_pb2.ProfileRun) -> str:
    """`MEASURING` for PROFILE_STATE_MEASURING."""
    return profiler_pb2.ProfileState.Name(run.state).removeprefix("PROFILE_STATE_")


def _wait(stubs: ServiceStubs, job_id: str, *, quiet: bool) -> profiler_pb2.Profile:
    printed = ""
    while True:
        request = profiler_pb2.GetProfileRequest(job_id=job_id)
        found = stubs.profiler.GetProfile(request, timeout=DEADLINE_SECONDS).profile
        if found.run.state == profiler_pb2.PROFILE_STATE_DONE:
            return found
        now = f"{job_id}: {state_of(found.run)}: {found.run.reason}"
        if now != printed and not quiet:
            typer.echo(now)
        printed = now
        time.sleep(_POLL_SECONDS)
