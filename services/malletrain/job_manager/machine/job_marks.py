"""Marks of jobs that a step has to look at. The job table has an index by mark, so that others are skipped. Pure."""

from __future__ import annotations

from enum import Enum

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.scale_faults import may_change_with_time
from malletrain.model.job_state import JobState


class JobMark(Enum):
    """A condition by which a step finds the jobs that it has to look at.

    DEPENDENT: it waits for other jobs. QUEUED: it waits for a place. ASKING: for burst buffer, too. UNSETTLED:
    something is to be reconciled. COMMANDED: a command is to be given. TIMED: a time limit runs, or it backs off.
    """

    DEPENDENT = "dependent"
    QUEUED = "queued"
    ASKING = "asking"
    UNSETTLED = "unsettled"
    COMMANDED = "commanded"
    TIMED = "timed"


def is_settled(job: Job) -> bool:
    """Whether there is nothing to reconcile.

    Tuples are compared, not sets, which is cheap: the same nodes in another order need no command either.
    """
    return job.wanted == job.commanded and (bool(job.wanted) or not job.supervised) and not job.target_reached


def requires_commands(job: Job) -> bool:
    """Whether effects follow from its fields."""
    return job.supervised and (
        bool(job.releases) or not job.serving or job.stop is not None or job.sequence > job.taken_sequence
    )


def is_timed(job: Job) -> bool:
    """Whether time alone may change it."""
    if job.not_before is not None or may_change_with_time(job):
        return True
    if not job.supervised or job.stop is not None:
        return False
    has_begun = any(since is not None for since in (job.done_since, job.stalled_since, job.idle_since, job.phase_since))
    return has_begun or job.state is not JobState.RUNNING or job.counted_failures > 0


def marks_of(job: Job) -> frozenset[JobMark]:
    """The marks that follow from a job's fields."""
    marks: list[JobMark] = []
    if job.waits_for:
        marks.append(JobMark.DEPENDENT)
    elif job.state is JobState.QUEUED:
        marks += [JobMark.QUEUED, JobMark.ASKING] if job.spec.burst_buffer_gb else [JobMark.QUEUED]
    if not is_settled(job):
        marks.append(JobMark.UNSETTLED)
    if requires_commands(job):
        marks.append(JobMark.COMMANDED)
    if is_timed(job):
        marks.append(JobMark.TIMED)
    return frozenset(marks)
