"""Jobs that wait for others: when their dependencies hold, and when they never will.

A job that waits is QUEUED, and no candidate for admission. What it waits for is part of the job and stored with it. The
end of a job and what follows from it for those that wait belong to one step, and are stored together: so what a job
waits for is right after any restart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from malletrain.job_manager.machine.admitting import place_reason
from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.jobs import Dependencies, Job
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState

_NAMED = 3
"""As many names stand in a reason."""


class Unfinished:
    """Which jobs have not ended, and which arrays have jobs that have not."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        """Note the names of jobs that have not ended."""
        self._names: set[str] = set()
        for job in jobs:
            self._names.add(job.id)
            if job.array_number is not None:
                self._names.add(job.array_id)

    def __contains__(self, name: object) -> bool:
        """Whether the job or the array with an identifier has not ended."""
        return name in self._names


def waiting_reason(dependencies: Dependencies, waits_for: Collection[str]) -> str:
    """Why a job waits, e.g. "waits for j000012 to end, and for j000013 to complete".

    Args:
        dependencies: All that it was submitted with.
        waits_for: Those that do not hold yet; at least one.
    """
    parts = [
        f"for {_listed(left)} to {what}"
        for names, what in ((dependencies.after, "end"), (dependencies.after_ok, "complete"))
        if (left := [name for name in names if name in waits_for])
    ]
    return f"waits {', and '.join(parts)}"


def follow_dependencies(transaction: Transaction) -> None:
    """Have jobs go on whose dependencies hold, and cancel those whose never will, now that others have ended.

    One that is cancelled may be waited for, too.
    """
    seen: set[str] = set()
    while transaction.jobs.has(JobMark.DEPENDENT):
        ended = [job for job in transaction.changed.values() if job.state.final and job.id not in seen]
        if not ended:
            return
        seen.update(job.id for job in ended)
        _follow(transaction, ended)


def _follow(transaction: Transaction, ended: Sequence[Job]) -> None:
    names = {name for job in ended for name in (job.id, job.array_id) if name}
    failed: dict[str, Job] = {}
    for job in ended:
        if job.state is not JobState.COMPLETED:
            failed.setdefault(job.id, job)
            failed.setdefault(job.array_id, job)
    waiting = [job for job in transaction.jobs.marked(JobMark.DEPENDENT) if not names.isdisjoint(job.waits_for)]
    unfinished = Unfinished(transaction.active() if waiting else ())
    for job in waiting:
        broken = next((name for name in job.spec.dependencies.after_ok if name in failed), None)
        if broken is not None:
            _cancel(transaction, job, broken, failed[broken])
        else:
            _go_on(transaction, job, tuple(name for name in job.waits_for if name in unfinished))


def _go_on(transaction: Transaction, job: Job, waits_for: tuple[str, ...]) -> None:
    if waits_for:
        reason = waiting_reason(job.spec.dependencies, waits_for)
        transaction.put(job, waits_for=waits_for, reason=reason)
        return
    reason = place_reason(transaction.policy.max_parallel, job.spec.array)
    transaction.move(job, JobState.QUEUED, JobReason.SUBMITTED, reason, waits_for=())


def _cancel(transaction: Transaction, job: Job, name: str, cause: Job) -> None:
    which = cause.id if name == cause.id else f"{cause.id} of {name}"
    reason = f"cancelled: {which} ended {cause.state}, and this job was to start once {name} is COMPLETED (after-ok)"
    transaction.finish(job, JobState.CANCELLED, JobReason.DEPENDENCY, reason)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    others = len(names) - _NAMED
    return f"{shown} and {others} more" if others > 0 else shown
