"""Time limits of jobs: when they are exceeded, what follows, and when that may be next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from malletrain.job_manager.machine import scale_faults
from malletrain.job_manager.machine.hangs import change_limit, hang_limit, late_change, presumed_hang
from malletrain.job_manager.machine.job_marks import JobMark, is_timed
from malletrain.job_manager.machine.jobs import Job, StopIntent, after_failure
from malletrain.job_manager.machine.metering import move_usage
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState

_LIMIT_TIMES = ("not_before", "good_since", "stalled_since", "idle_since", "phase_since", "done_since", "scale_since")


def check_time_limits(transaction: Transaction) -> None:
    """Check every limit of every job that has one."""
    for job in transaction.jobs.marked(JobMark.TIMED):
        _end_backoff(transaction, job)
        job = transaction.jobs[job.id]
        transaction.put(job, **scale_faults.changes_with_time(job, transaction.now))
        job = transaction.jobs[job.id]
        if job.supervised and job.stop is None:
            _check_job(transaction, job)


def _end_backoff(transaction: Transaction, job: Job) -> None:
    if job.not_before is None:
        return
    remaining = job.not_before - transaction.now
    # More than the longest pause: the clock was set back while no JobManager ran.
    if remaining <= 0 or remaining > transaction.policy.restart_backoff_max_seconds:
        reason = f"back-off is over, waits for nodes{after_failure(job)}"
        transaction.move(job, job.state, JobReason.BACKOFF_ENDED, reason, not_before=None)


def _check_job(transaction: Transaction, job: Job) -> None:
    policy, now = transaction.policy, transaction.now
    if job.done_since is not None and now - job.done_since >= policy.finish_seconds:
        reason = f"done, but did not end within {policy.finish_seconds:g} s"
        transaction.stop(job, StopIntent.COMPLETE, JobReason.TRAINER_DONE, reason)
    elif job.state is not JobState.RUNNING:
        if (late := late_change(job, policy, now)) is not None:
            transaction.stop(job, StopIntent.RESTART, JobReason.RESCALE_TIMED_OUT, late, job.wanted)
    else:
        _check_running(transaction, job)


def _check_running(transaction: Transaction, job: Job) -> None:
    policy, now = transaction.policy, transaction.now
    if (evidence := presumed_hang(job, policy, now)) is not None:
        transaction.stop(job, StopIntent.RESTART, JobReason.STALLED, f"presumed to hang: {evidence}", job.wanted)
    elif job.counted_failures and job.good_since is not None and now - job.good_since >= policy.restart_forgive_seconds:
        transaction.put(job, counted_failures=0)


def next_limit(jobs: Iterable[Job], policy: ManagerPolicy) -> float:
    """When `check_time_limits` may next change one of these jobs, in seconds since the epoch; infinity: never.

    Before that, it changes none of them, unless the clock is set back.
    """
    return min(chain.from_iterable(_limits(job, policy) for job in jobs), default=inf)


def _limits(job: Job, policy: ManagerPolicy) -> Iterator[float]:
    if not is_timed(job):
        return
    if job.not_before is not None:
        yield job.not_before
    yield scale_faults.next_change(job)
    if not job.supervised or job.stop is not None:
        return
    if job.done_since is not None:
        yield job.done_since + policy.finish_seconds
    if job.state is not JobState.RUNNING:
        yield change_limit(job, policy)
        return
    yield hang_limit(job, policy)
    if job.counted_failures and job.good_since is not None:
        yield job.good_since + policy.restart_forgive_seconds


def move_times(transaction: Transaction, seconds: float) -> None:
    """Move what time limits are counted from, so that as much of each is left as before the step.

    Otherwise, a step of an hour would end each start that is not confirmed, and one back would let a job that backs off
    wait for an hour.
    """
    for job in transaction.active():
        transaction.put(job, **_move_times(job, seconds))
    transaction.ledger = {owner: replace(use, since=use.since + seconds) for owner, use in transaction.ledger.items()}
    move_usage(transaction, seconds)


def _move_times(job: Job, seconds: float) -> dict[str, object]:
    times = {name: getattr(job, name) for name in _LIMIT_TIMES}
    return {
        **{name: None if time is None else time + seconds for name, time in times.items()},
        "changed_at": job.changed_at + seconds,
        "scale_faults": tuple(
            replace(fault, until=None if fault.until is None else fault.until + seconds) for fault in job.scale_faults
        ),
        "releases": tuple(replace(release, since=release.since + seconds) for release in job.releases),
    }
