"""Jobs that wait for others: when their dependencies hold, and when they never will.

A job that waits is QUEUED, and no candidate for admission. What it waits for is part of the job and stored with it. The
end of a job and what follows from it for those that wait belong to one step, and are stored together: so what a job
waits for is right after any restart.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

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
        """Begin with jobs that have not ended."""
        self._counts = Counter(name for job in jobs for name in _names_of(job))

    def __contains__(self, name: object) -> bool:
        """Whether the job or the array with an identifier has not ended."""
        return name in self._counts

    def remove(self, job: Job) -> None:
        """Note that one of them has ended."""
        for name in _names_of(job):
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]


@lru_cache(maxsize=64)  # the jobs of an array wait for the same, and there may be many
def waiting_reason(dependencies: Dependencies, waits_for: tuple[str, ...]) -> str:
    """Why a job waits, e.g. "waits for j000012 to end, and for j000013 to complete".

    Args:
        dependencies: All that it was submitted with.
        waits_for: Those that do not hold yet; at least one.
    """
    unfinished_names = frozenset(waits_for)
    parts = [
        f"for {_list_names(unfinished)} to {what}"
        for names, what in ((dependencies.after, "end"), (dependencies.after_ok, "complete"))
        if (unfinished := [name for name in names if name in unfinished_names])
    ]
    return f"waits {', and '.join(parts)}"


def follow_dependencies(transaction: Transaction) -> None:
    """Have jobs go on whose dependencies hold, and cancel those whose never will, now that others have ended.

    One that is cancelled may be waited for, too.
    """
    if not transaction.jobs.has(JobMark.DEPENDENT):
        return
    ended = [job for job in transaction.changed.values() if job.state.final]
    owners = {job.owner for job in ended}  # jobs wait for jobs of their own owner
    waiting = [job for job in transaction.jobs.marked(JobMark.DEPENDENT) if job.owner in owners] if ended else []
    if waiting:
        held = _follow(transaction, ended, waiting)
        for job_id, names in held.items():
            job = transaction.jobs[job_id]
            if not job.state.final:
                _go_on(transaction, job, tuple(name for name in job.waits_for if name not in names))


def _follow(transaction: Transaction, ended: Sequence[Job], waiting: Sequence[Job]) -> Mapping[str, set[str]]:
    """Cancel those whose dependencies never will hold; returns which hold now, by identifier of the job that waits."""
    by_name: dict[str, list[str]] = {}
    for job in waiting:
        for name in job.waits_for:
            by_name.setdefault(name, []).append(job.id)
    unfinished = Unfinished(transaction.active())
    held: dict[str, set[str]] = {}
    queue = deque(ended)
    while queue:
        cause = queue.popleft()
        is_broken = cause.state is not JobState.COMPLETED
        for name in _names_of(cause):
            for job in [transaction.jobs[job_id] for job_id in by_name.get(name, ())]:
                if job.state.final:
                    continue
                if is_broken and name in job.spec.dependencies.after_ok:
                    unfinished.remove(job)
                    queue.append(_cancel(transaction, job, name, cause))
                elif name not in unfinished:
                    held.setdefault(job.id, set()).add(name)
    return held


def _go_on(transaction: Transaction, job: Job, waits_for: tuple[str, ...]) -> None:
    if waits_for:
        reason = waiting_reason(job.spec.dependencies, waits_for)
        transaction.put(job, waits_for=waits_for, reason=reason)
        return
    reason = place_reason(transaction.policy.max_parallel, job.spec.array)
    transaction.move(job, JobState.QUEUED, JobReason.SUBMITTED, reason, waits_for=())


def _cancel(transaction: Transaction, job: Job, name: str, cause: Job) -> Job:
    which = cause.id if name == cause.id else f"{cause.id} of {name}"
    reason = f"cancelled: {which} ended {cause.state}, and this job was to start once {name} is COMPLETED (after-ok)"
    return transaction.finish(job, JobState.CANCELLED, JobReason.DEPENDENCY, reason)


def _names_of(job: Job) -> tuple[str, ...]:
    """The names by which other jobs may wait for a job."""
    return (job.id,) if job.array_number is None else (job.id, job.array_id)


def _list_names(names: Sequence[str]) -> str:
    first = ", ".join(names[:_NAMED])
    others = len(names) - _NAMED
    return f"{first} and {others} more" if others > 0 else first
