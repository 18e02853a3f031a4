"""`malletrain submit --wait`: waits until jobs have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from malletrain.caller.reconnecting import across_restarts, job_changes
from malletrain.cli.jobs.job_output import reason_of, trained_nothing
from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import state_name, tell
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.v1 import resources_pb2

COMPLETED, FAILED, CANCELLED, INTERRUPTED = 0, 3, 4, 130
"""Exit statuses: 1 and 2 are those of all verbs, errors and wrong use."""
_FINAL = {
    resources_pb2.JOB_STATE_COMPLETED: COMPLETED,
    resources_pb2.JOB_STATE_FAILED: FAILED,
    resources_pb2.JOB_STATE_CANCELLED: CANCELLED,
}


def wait_until_ended(
    stubs: ServiceStubs,
    jobs: Sequence[resources_pb2.Job],
    changed: Callable[[Sequence[resources_pb2.Job]], None] = lambda _: None,
) -> list[resources_pb2.Job]:
    """Wait until all jobs have ended, also over restarts of JobManager.

    Each change of state is told on standard error.

    Args:
        stubs: The services.
        changed: Told of all jobs after every change of one, of its nodes too.

    Returns:
        The jobs as they ended, in the same order.
    """
    known = {job.id: job for job in jobs}
    for job in jobs:
        tell(_line(job))
    for news in across_restarts(
        "JobManager", lambda: job_changes(stubs, lambda: _unfinished_ids(known.values())), tell
    ):
        for job in news:
            if job.state != known[job.id].state:
                tell(_line(job))
                if job.state in _FINAL:  # a reason goes on with the last lines of the job's log
                    for line in reason_of(job).splitlines()[1:]:
                        tell(f"    {line}")
            known[job.id] = job
        if news:
            changed(list(known.values()))
        if not _unfinished_ids(known.values()):
            break
    return list(known.values())


def exit_status(jobs: Iterable[resources_pb2.Job]) -> int:
    """How jobs ended: FAILED if one has failed, else CANCELLED if one was cancelled, else COMPLETED."""
    statuses = {_FINAL[job.state] for job in jobs}
    return next((status for status in (FAILED, CANCELLED) if status in statuses), COMPLETED)


def unfinished_in_words(jobs: Sequence[resources_pb2.Job]) -> str:
    """What is said when one no longer waits for jobs."""
    if len(jobs) == 1:
        return f"no longer waiting; {jobs[0].id} goes on: malletrain cancel {jobs[0].id} ends it"
    return f"no longer waiting; the {len(jobs)} jobs go on: malletrain cancel ID ends one"


def _unfinished_ids(jobs: Iterable[resources_pb2.Job]) -> set[str]:
    return {job.id for job in jobs if job.state not in _FINAL}


def _line(job: resources_pb2.Job) -> str:
    nodes = f", {len(job.commanded_nodes)} nodes" if job.commanded_nodes else ""
    nothing = f"; no batch was reported, see malletrain logs {job.id}" if trained_nothing(job) else ""
    reason = first_line(reason_of(job)) + nothing
    return f"{time.strftime('%H:%M:%S')} {job.id} {state_name(job.state)}{nodes}" + (f": {reason}" if reason else "")
