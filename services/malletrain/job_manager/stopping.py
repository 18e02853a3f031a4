"""Ending a job's processes, for whatever reason."""

from __future__ import annotations

from malletrain.job_manager.jobs import Job, StopIntent
from malletrain.job_manager.states import JobState
from malletrain.job_manager.world import Turn


def stop(
    turn: Turn,
    job: Job,
    intent: StopIntent,
    reason: str,
    wanted: tuple[str, ...] = (),
    commanded: tuple[str, ...] | None = None,
) -> Job:
    """End the processes of a supervised job; a weightier intent replaces one that is under way.

    The job keeps its commanded nodes until its processes are confirmed to be gone: nobody else may use them.

    Args:
        turn: The step.
        job: The job.
        intent: What becomes of it then.
        reason: Why.
        wanted: Nodes to start again on afterwards.
        commanded: Nodes that its processes still have; None: all that it had.
    """
    if not intent.outranks(job.stop):
        return job
    return turn.move(
        job,
        JobState.STOPPING,
        reason,
        stop=intent,
        wanted=wanted,
        commanded=job.commanded if commanded is None else commanded,
        confirmed=(),
        stalled_since=None,
        changed_at=turn.now,
    )


def cancel(turn: Turn, job: Job) -> Job:
    """End a job for good, at once where it has no processes."""
    if job.supervised:
        return stop(turn, job, StopIntent.CANCEL, "cancelled by its user")
    return finish(turn, job, JobState.CANCELLED, "cancelled by its user")


def finish(turn: Turn, job: Job, state: JobState, reason: str, **changes: object) -> Job:
    """Bring a job that has no processes to a final state."""
    return turn.move(job, state, reason, end_time=turn.now, wanted=(), not_before=None, **changes)
