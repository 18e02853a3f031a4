"""The jobs of a replay one after the other; a set that is repeated has no end, and no job of it is made too early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions


@dataclass(frozen=True, slots=True)
class QueueEmpty:
    """The moment from which there is less work than there are places for it.

    Attributes:
        time_s: When, in seconds.
        outcome: Samples processed by all jobs until then, net of losses, each weighted by its unit in the metric.
    """

    time_s: float
    outcome: float


class Arrivals:
    """Jobs in the order of their submission.

    A job set that is repeated begins again when its last job is submitted, as often as anybody asks: the jobs of a
    later turn are there at once. Their identifiers end in `#1`, `#2`, …
    """

    def __init__(self, jobs: Sequence[ReplayJob], options: ReplayOptions) -> None:
        """
        Args:
            jobs: In the order of submission, at least one if they are repeated.
        """
        self._jobs = jobs
        self._options = options
        self._repeats = options.repeat_jobs
        self._next = 0

    @property
    def over(self) -> bool:
        """Whether no further job will ever come."""
        return not self._repeats and self._next >= len(self._jobs)

    @property
    def next_submit_s(self) -> float:
        """When the next job is submitted, in seconds; infinity: no further one comes."""
        if self._next < len(self._jobs):
            return self._jobs[self._next].submit_s
        return self._jobs[-1].submit_s if self._repeats else inf

    def take_submitted(self, now_s: float) -> Iterator[ReplayJob]:
        """Takes the jobs that are submitted by now, in seconds, one by one: without end where they are repeated."""
        while self.next_submit_s <= now_s:
            turn, place = divmod(self._next, len(self._jobs))
            self._next += 1
            yield self.job_of_turn(self._jobs[place], turn)

    def room(self, waiting: int) -> int | None:
        """How many more jobs may wait, where so many do; None: all that come.

        As many jobs of later turns wait as the set has: with all of them the queue would have no end.
        """
        return max(0, len(self._jobs) - waiting) if self._repeats else None

    def is_empty(self, waiting: int, active: int) -> bool:
        """Whether the queue stays empty from now on, with a place free.

        Args:
            waiting: Jobs that are submitted and not admitted.
            active: Jobs that are admitted and not done.
        """
        return self.over and not waiting and active < places(self._jobs, self._options)

    def job_of_turn(self, job: ReplayJob, turn: int) -> ReplayJob:
        """A job of the set as it is submitted when the set is gone through for the turn-th time, from 0."""
        job = job.free() if self._options.free else job
        return replace(job, id=f"{job.id}#{turn}", submit_s=self._jobs[-1].submit_s) if turn else job


def places(jobs: Sequence[ReplayJob], options: ReplayOptions) -> int:
    """How many jobs of a set can be in training at once: a set that is smaller than the places fills no more."""
    return min(options.max_parallel, len(jobs))
