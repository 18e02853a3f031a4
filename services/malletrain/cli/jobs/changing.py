"""`malletrain cancel ID...` and `malletrain set ID... --weight W`: end jobs, or change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import grpc
import typer

from malletrain.cli.jobs.job_output import job_dict
from malletrain.cli.jobs.naming import JobsArgument, unfinished_jobs_of
from malletrain.cli.shared.output import JsonOption, print_json, state_name
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, connect
from malletrain.common.backoff import Backoff
from malletrain.v1 import job_manager_pb2, resources_pb2


def cancel(
    job_ids: JobsArgument,
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


_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 2.0
_MAX_ATTEMPTS = 32
"""For one job: about a minute."""


def set(  # the verb's name
    job_ids: JobsArgument,
    weight: Annotated[float, typer.Option(help="Priority weight from now on, 0.000001 to 1000000.")],
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Change the weight of jobs: `malletrain set resnet --weight 4`. The next plan goes by it."""
    with connect() as stubs:
        meant = unfinished_jobs_of(stubs, job_ids, time.time())
        requests = [job_manager_pb2.UpdateJobRequest(job_id=job_id, weight=weight) for job_id in meant]
        changed = []
        for job in update_in_turn(stubs.job_manager.UpdateJob, requests, lambda text: typer.echo(text, err=True)):
            changed.append(job)
            if not as_json:
                typer.echo(f"{job.id} weight {job.spec.weight:g}")
    if as_json:
        print_json([job_dict(job) for job in changed])


def update_in_turn(
    update: Callable[..., job_manager_pb2.UpdateJobResponse],
    requests: Iterable[job_manager_pb2.UpdateJobRequest],
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[resources_pb2.Job]:
    """The jobs after their changes, one after the other. Where they are too many at once, it waits and goes on.

    Args:
        update: The method of the stub.
        requests: The changes.
        say: Told once why it waits.
        pause: Waits for so many seconds.

    Raises:
        grpc.RpcError: a call fails for another reason, or one is refused for about a minute.
    """
    backoff, waited = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS), False
    for request in requests:
        attempts = 0
        while True:
            try:
                job = update(request, timeout=DEADLINE_SECONDS).job
                break
            except grpc.RpcError as error:
                attempts += 1
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or attempts >= _MAX_ATTEMPTS:
                    raise
                if not waited:
                    say(f"waiting, and going on then: {error.details()}")
                waited = True
            pause(backoff.fail())
        backoff.succeed()
        yield job
