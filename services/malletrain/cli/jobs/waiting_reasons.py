"""Why jobs get no nodes, for commands that show nodes or jobs that wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import grpc
import typer

from malletrain.cli.jobs.needs import tell_of_unsuited
from malletrain.cli.shared.output import ago, duration, one_line
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import resources_pb2, scavenger_pb2

_NOT_STARTED = (resources_pb2.JOB_STATE_QUEUED, resources_pb2.JOB_STATE_WAITING)


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


def drains(entries: Iterable[scavenger_pb2.DrainedNode], now: float) -> list[str]:
    """A line for each drain.

    Args:
        entries: From GetStatus.
        now: Seconds since the epoch.
    """
    lines = []
    for entry in entries:
        why = f": {one_line(entry.reason)}" if entry.reason else ""
        lines.append(f"drained: {entry.name or 'all nodes'}, by {entry.user}, {ago(entry.since, now)} ago{why}")
    return lines


def quarantines(entries: Iterable[scavenger_pb2.QuarantinedNode], now: float) -> list[str]:
    """A line for each node that is quarantined.

    Args:
        entries: From GetStatus.
        now: Seconds since the epoch.
    """
    lines = []
    for entry in entries:
        wait = duration(max(0.0, unix_seconds(entry.until) - now))
        by = f", by {one_line(entry.by)}" if entry.by else ""
        why = f": {one_line(entry.reason)}" if entry.reason else ""
        lines.append(
            f"quarantined: {entry.name} for another {wait}, after {entry.failures} failures{by}{why}; "
            f"malletrain resume {entry.name} ends it"
        )
    return lines


def slow_nodes(entries: Iterable[scavenger_pb2.SlowNodeStatus]) -> list[str]:
    """A line for each node that is called slow.

    Args:
        entries: From GetStatus.
    """
    return [f"{'slow' if entry.counts else 'called slow'}: {entry.name}: {one_line(entry.reason)}" for entry in entries]


def too_large(jobs: Iterable[resources_pb2.Job], idle: int) -> list[str]:
    """A line for each job that has not started and is larger than what is idle."""
    return [
        f"{job.id} needs {job.spec.min_nodes} nodes at least; idle now: {idle}"
        for job in jobs
        if job.state in _NOT_STARTED and not job.fleet_id and job.spec.min_nodes > idle
    ]


def tell_what_is_too_large(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job]) -> None:
    """Say on standard error which jobs that have just been submitted need more nodes than there are, if it is known."""
    if not any(job.spec.min_nodes > 1 and not job.fleet_id for job in jobs):
        return
    try:
        idle = len(stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes)
    except grpc.RpcError:
        return  # they are submitted all the same
    for line in too_large(jobs, idle):
        typer.echo(f"{line}; it can't start before there are as many", err=True)


def tell_why_jobs_wait(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job]) -> None:
    """Say on standard error why jobs that wait for nodes get none, if the Scavenger answers."""
    for line in tell_of_unsuited(stubs, [job for job in jobs if job.state in _NOT_STARTED]):
        typer.echo(line, err=True)
    if not any(job.state == resources_pb2.JOB_STATE_WAITING for job in jobs):
        return
    try:
        status = stubs.scavenger.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=DEADLINE_SECONDS)
        idle = len(stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes)
    except grpc.RpcError:
        return  # the jobs are shown all the same
    now = time.time()
    stale = [f"the last good answer of {status.source} is too old: no node is offered"] if status.stale else []
    lines = [*stale, *placeholder_failures(status.placeholders, now), *drains(status.drained, now)]
    lines += quarantines(status.quarantined, now)
    for line in [*lines, *too_large(jobs, idle)]:
        typer.echo(line, err=True)
