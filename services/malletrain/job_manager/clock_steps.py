"""Steps of the wall clock: they are noticed by the monotonic clock, and all time limits move with them."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.transaction import Transaction
from malletrain.runtime.clock import Clock

_LEAST_SECONDS = 1.0
"""Smaller steps are left to add up."""
_TIMES = ("not_before", "good_since", "stalled_since", "done_since")


class ClockSteps:
    """Notices that the wall clock was set."""

    def __init__(self, clock: Clock) -> None:
        """Begin with the clock as it is."""
        self._clock = clock
        self._offset = clock.time() - clock.monotonic()

    def take(self) -> float:
        """By how many seconds the wall clock was set since the last step that was taken; 0 if it was not."""
        offset = self._clock.time() - self._clock.monotonic()
        step = offset - self._offset
        if abs(step) < _LEAST_SECONDS:
            return 0.0
        self._offset = offset
        return step


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
