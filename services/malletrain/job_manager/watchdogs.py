"""Time limits, stalls, the end of back-off, and progress as Monitor sees it."""

from __future__ import annotations

from malletrain.job_manager.job_marks import JobMark
from malletrain.job_manager.jobs import Job, StopIntent
from malletrain.job_manager.transaction import Transaction
from malletrain.job_manager.transitions import JobReason
from malletrain.model.job_state import JobState

_GROWTH_DEADLINE_FACTOR = 5.0
_MOST_DOUBLINGS = 3


def handle_progress(transaction: Transaction, job: Job, samples: int, stalled: bool) -> None:
    """Take over samples and whether the job is stalled."""
    since = (transaction.now if job.stalled_since is None else job.stalled_since) if stalled else None
    transaction.put(job, samples=samples, stalled_since=since if job.supervised else None)


def note_progress(transaction: Transaction, samples: tuple[tuple[str, int], ...]) -> None:
    """Take over samples that decide nothing."""
    for job_id, count in samples:
        job = transaction.jobs.get(job_id)
        if job is not None:
            transaction.put(job, samples=count)


def handle_trainer_done(transaction: Transaction, job: Job) -> None:
    """Note that the trainer has said that it is done. Its processes are expected to end by themselves soon."""
    if job.supervised and job.done_since is None:
        transaction.put(job, done_since=transaction.now)


def check_time_limits(transaction: Transaction) -> None:
    """Check every limit of every job that has one."""
    for job in transaction.jobs.marked(JobMark.TIMED):
        _end_backoff(transaction, job)
        if job.supervised and job.stop is None:
            _check_job(transaction, job)


def _end_backoff(transaction: Transaction, job: Job) -> None:
    if job.not_before is None:
        return
    left = job.not_before - transaction.now
    # More than the longest pause: the clock was set back while no JobManager ran.
    if left <= 0 or left > transaction.policy.restart_backoff_max_seconds:
        reason = "back-off is over, waits for nodes"
        transaction.move(job, job.state, JobReason.BACKOFF_ENDED, reason, not_before=None)


def _check_job(transaction: Transaction, job: Job) -> None:
    policy, now = transaction.policy, transaction.now
    if job.done_since is not None and now - job.done_since >= policy.finish_seconds:
        reason = f"done, but did not end within {policy.finish_seconds:g} s"
        transaction.stop(job, StopIntent.COMPLETE, JobReason.TRAINER_DONE, reason)
    elif job.state is not JobState.RUNNING and now - job.changed_at >= _rescale_limit(transaction, job):
        scale = job.in_words(len(job.commanded))
        reason = f"scale of {scale} not confirmed within {_rescale_limit(transaction, job):g} s"
        transaction.stop(job, StopIntent.RESTART, JobReason.RESCALE_TIMED_OUT, reason, job.wanted)
    elif job.state is JobState.RUNNING:
        _check_running(transaction, job)


def _rescale_limit(transaction: Transaction, job: Job) -> float:
    """Seconds until a change must be confirmed. It is longer if the job trains on while its new workers boot.

    It doubles with every counted failure: on slow nodes, the same limit would end one boot after the other.
    """
    trains_on = job.stalled_since is None and bool(job.confirmed) and set(job.confirmed) < set(job.commanded)
    patience = 2.0 ** min(job.counted_failures, _MOST_DOUBLINGS)
    return transaction.policy.rescale_deadline_seconds * patience * (_GROWTH_DEADLINE_FACTOR if trains_on else 1.0)


def _check_running(transaction: Transaction, job: Job) -> None:
    policy, now = transaction.policy, transaction.now
    if job.stalled_since is not None and now - job.stalled_since >= policy.stall_seconds:
        reason = f"stalled for {now - job.stalled_since:.0f} s"
        transaction.stop(job, StopIntent.RESTART, JobReason.STALLED, reason, job.wanted)
    elif job.counted_failures and job.good_since is not None and now - job.good_since >= policy.restart_forgive_seconds:
        transaction.put(job, counted_failures=0)
