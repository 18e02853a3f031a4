"""Time limits, stalls, the end of back-off, progress as Monitor sees it, and steps of the wall clock."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.machine import scale_faults
from malletrain.job_manager.machine.hangs import is_long, late_change, presumed_hang
from malletrain.job_manager.machine.job_marks import JobMark
from malletrain.job_manager.machine.jobs import Job, StopIntent, after_failure
from malletrain.job_manager.machine.metering import move_usage
from malletrain.job_manager.machine.stimuli import Progressed
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState

_LIMIT_TIMES = ("not_before", "good_since", "stalled_since", "idle_since", "phase_since", "done_since", "scale_since")


def handle_progress(transaction: Transaction, job: Job, seen: Progressed) -> None:
    """Take over samples, whether the job's saves fail, and whether it is silent, with or without a phase for it."""
    since = max(transaction.now - seen.seconds, job.changed_at)
    silent = job.supervised and is_long(job, seen)
    in_phase = silent and bool(seen.phase)
    stalled_since = since if job.stalled_since is None else job.stalled_since
    transaction.put(
        job,
        samples=seen.samples,
        stalled_since=stalled_since if silent and not in_phase else None,
        phase=seen.phase if in_phase else "",
        phase_since=since if in_phase else None,
        positions_known=seen.positions_known,
        save_error=job.save_error if seen.save_error is None else seen.save_error,
    )


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
        job = transaction.jobs[job.id]
        transaction.put(job, **scale_faults.news(job, transaction.now))
        job = transaction.jobs[job.id]
        if job.supervised and job.stop is None:
            _check_job(transaction, job)


def _end_backoff(transaction: Transaction, job: Job) -> None:
    if job.not_before is None:
        return
    left = job.not_before - transaction.now
    # More than the longest pause: the clock was set back while no JobManager ran.
    if left <= 0 or left > transaction.policy.restart_backoff_max_seconds:
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


def move_times(transaction: Transaction, seconds: float) -> None:
    """Move what time limits are counted from, so that as much of each is left as before the step.

    Otherwise, a step of an hour would end each start that is not confirmed, and one back would let a job that backs off
    wait for an hour.
    """
    for job in transaction.active():
        transaction.put(job, **_moved(job, seconds))
    transaction.ledger = {owner: replace(use, since=use.since + seconds) for owner, use in transaction.ledger.items()}
    move_usage(transaction, seconds)


def _moved(job: Job, seconds: float) -> dict[str, object]:
    times = {name: getattr(job, name) for name in _LIMIT_TIMES}
    return {
        **{name: None if time is None else time + seconds for name, time in times.items()},
        "changed_at": job.changed_at + seconds,
        "scale_faults": tuple(
            replace(fault, until=None if fault.until is None else fault.until + seconds) for fault in job.scale_faults
        ),
        "releases": tuple(replace(release, since=release.since + seconds) for release in job.releases),
    }
