"""`malletrain submit --wait`: waits until jobs have ended."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence

from malletrain.cli.jobs.job_output import reason_of, trained_nothing
from malletrain.cli.shared.layout import first_line
from malletrain.cli.shared.output import state_name
from malletrain.cli.shared.reconnecting import across_restarts, tell
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.v1 import job_manager_pb2, resources_pb2

COMPLETED, FAILED, CANCELLED, INTERRUPTED = 0, 3, 4, 130
"""Exit statuses: 1 and 2 are those of all verbs, errors and wrong use."""
_FINAL = {
    resources_pb2.JOB_STATE_COMPLETED: COMPLETED,
    resources_pb2.JOB_STATE_FAILED: FAILED,
    resources_pb2.JOB_STATE_CANCELLED: CANCELLED,
}


def wait_until_ended(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job]) -> list[resources_pb2.Job]:
    """Wait until all jobs have ended, also over restarts of JobManager.

    Each change of state is told on standard error.

    Returns:
        The jobs as they ended, in the same order.
    """
    known = {job.id: job for job in jobs}
    for job in jobs:
        tell(_line(job))
    for changed in across_restarts("JobManager", lambda: _changes(stubs, _unfinished(known.values()))):
        for job in changed:
            if job.state != known[job.id].state:
                tell(_line(job))
                if job.state in _FINAL:
                    _tell_last_lines(job)
            known[job.id] = job
        if not _unfinished(known.values()):
            break
    return list(known.values())


def exit_status(jobs: Iterable[resources_pb2.Job]) -> int:
    """How jobs ended: FAILED if one has failed, else CANCELLED if one was cancelled, else COMPLETED."""
    found = {_FINAL[job.state] for job in jobs}
    return next((status for status in (FAILED, CANCELLED) if status in found), COMPLETED)


def unfinished_in_words(jobs: Sequence[resources_pb2.Job]) -> str:
    """What is said when one no longer waits for jobs."""
    if len(jobs) == 1:
        return f"no longer waiting; {jobs[0].id} goes on: malletrain cancel {jobs[0].id} ends it"
    return f"no longer waiting; the {len(jobs)} jobs go on: malletrain cancel ID ends one"


def _unfinished(jobs: Iterable[resources_pb2.Job]) -> set[str]:
    return {job.id for job in jobs if job.state not in _FINAL}


def _changes(stubs: ServiceStubs, awaited: set[str]) -> Generator[list[resources_pb2.Job], None, None]:
    """Those of the jobs that have changed; at first all, whether they have ended meanwhile or not."""
    stream = stubs.job_manager.WatchJobs(job_manager_pb2.WatchJobsRequest(without_progress=True))
    try:
        for message in stream:
            found = [job for job in message.jobs if job.id in awaited]
            if message.snapshot:
                for job_id in sorted(awaited - {job.id for job in found}):
                    request = job_manager_pb2.GetJobRequest(job_id=job_id)
                    found.append(stubs.job_manager.GetJob(request, timeout=DEADLINE_SECONDS).job)
            yield found
    finally:
        stream.cancel()


def _tell_last_lines(job: resources_pb2.Job) -> None:
    """What a reason goes on with: the last lines of the job's log."""
    for line in reason_of(job).splitlines()[1:]:
        tell(f"    {line}")


def _line(job: resources_pb2.Job) -> str:
    nodes = f", {len(job.commanded_nodes)} nodes" if job.commanded_nodes else ""
    nothing = f"; no batch was reported, see malletrain logs {job.id}" if trained_nothing(job) else ""
    reason = first_line(reason_of(job)) + nothing
    return f"{time.strftime('%H:%M:%S')} {job.id} {state_name(job.state)}{nodes}" + (f": {reason}" if reason else "")
