"""What happens when nothing happens: time limits, stalls, back-off, and what Monitor says of progress."""

from __future__ import annotations

from malletrain.job_manager.jobs import Job, StopIntent, nodes_in_words
from malletrain.job_manager.states import JobState
from malletrain.job_manager.stopping import stop
from malletrain.job_manager.world import Turn

_PATIENCE_WITH_NEWCOMERS = 5.0


def see_progress(turn: Turn, job: Job, samples: int, stalled: bool) -> None:
    """Take over what Monitor knows."""
    since = (turn.now if job.stalled_since is None else job.stalled_since) if stalled else None
    turn.put(job, samples=samples, stalled_since=since if job.supervised else None)


def see_done(turn: Turn, job: Job) -> None:
    """The trainer has said that it is done; its processes are expected to end by themselves soon."""
    if job.supervised and job.done_since is None:
        turn.put(job, done_since=turn.now)


def watch(turn: Turn) -> None:
    """Look at every limit."""
    for job in turn.active():
        _end_back_off(turn, job)
        if job.supervised and job.stop is None:
            _check_limits(turn, job)


def _end_back_off(turn: Turn, job: Job) -> None:
    if job.not_before is not None and turn.now >= job.not_before:
        turn.move(job, job.state, "back-off is over, waits for nodes", not_before=None)


def _check_limits(turn: Turn, job: Job) -> None:
    policy, now = turn.policy, turn.now
    if job.done_since is not None and now - job.done_since >= policy.finish_seconds:
        stop(turn, job, StopIntent.COMPLETE, f"done, but did not end within {policy.finish_seconds:g} s")
    elif job.state is not JobState.RUNNING and now - job.changed_at >= _rescale_limit(turn, job):
        limit = f"scale of {nodes_in_words(len(job.commanded))} not confirmed within {_rescale_limit(turn, job):g} s"
        stop(turn, job, StopIntent.RESTART, limit, job.wanted)
    elif job.state is JobState.RUNNING:
        _check_running(turn, job)


def _rescale_limit(turn: Turn, job: Job) -> float:
    """Seconds until a change must be confirmed: more where the job trains on while its newcomers boot."""
    trains_on = job.stalled_since is None and bool(job.confirmed) and set(job.confirmed) < set(job.commanded)
    return turn.policy.rescale_deadline_seconds * (_PATIENCE_WITH_NEWCOMERS if trains_on else 1.0)


def _check_running(turn: Turn, job: Job) -> None:
    policy, now = turn.policy, turn.now
    if job.stalled_since is not None and now - job.stalled_since >= policy.stall_seconds:
        stop(turn, job, StopIntent.RESTART, f"stalled for {now - job.stalled_since:.0f} s", job.wanted)
    elif job.strikes and job.good_since is not None and now - job.good_since >= policy.restart_forgive_seconds:
        turn.put(job, strikes=0)
