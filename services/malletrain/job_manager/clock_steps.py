"""Steps of the wall clock: all time limits move with them. Pure."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.transaction import Transaction

_TIMES = ("not_before", "good_since", "stalled_since", "done_since")


def move_times(transaction: Transaction, seconds: float) -> None:
    """Move what time limits are counted from, so that as much of each is left as before the step.

    Otherwise, a step of an hour would end each start that is not confirmed, and one back would let a job that backs off
    wait for an hour.
    """
    for job in transaction.active():
        transaction.put(job, **_moved(job, seconds))
    transaction.ledger = {owner: replace(use, since=use.since + seconds) for owner, use in transaction.ledger.items()}


def _moved(job: Job, seconds: float) -> dict[str, object]:
    times = {name: getattr(job, name) for name in _TIMES}
    return {
        **{name: None if time is None else time + seconds for name, time in times.items()},
        "changed_at": job.changed_at + seconds,
        "releases": tuple(replace(release, since=release.since + seconds) for release in job.releases),
    }
