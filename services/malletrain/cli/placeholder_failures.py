"""Why no more nodes can be held, for commands that show nodes or jobs that wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import grpc
import typer

from malletrain.cli.output import duration, one_line
from malletrain.cli.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import resources_pb2, scavenger_pb2


def placeholder_failures(placeholders: Iterable[scavenger_pb2.PlaceholderStatus], now: float) -> list[str]:
    """A line for each scheduler that does not let us hold nodes.

    Args:
        placeholders: From GetStatus.
        now: Seconds since the epoch.
    """
    lines = []
    for status in placeholders:
        if status.failures_in_a_row:
            verb = "are paused" if status.paused else "fail"
            wait = duration(max(0.0, unix_seconds(status.retry_time) - now))
            node = f"node {status.node}: " if status.node else ""
            lines.append(
                f"placeholders of {status.source} {verb} after {status.failures_in_a_row} failures in a row, "
                f"next attempt in {wait}; {node}{one_line(status.error)}"
            )
    return lines


def tell_why_jobs_wait(stubs: ServiceStubs, jobs: Iterable[resources_pb2.Job]) -> None:
    """Say on standard error why no more nodes can be held, if a job waits for nodes and the Scavenger answers."""
    if not any(job.state == resources_pb2.JOB_STATE_WAITING for job in jobs):
        return
    try:
        status = stubs.scavenger.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=DEADLINE_SECONDS)
    except grpc.RpcError:
        return  # the jobs are shown all the same
    for line in placeholder_failures(status.placeholders, time.time()):
        typer.echo(line, err=True)
