"""How much one owner may ask of JobManager. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.token_bucket import TokenBucket
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import LimitExceededError

_BURST_SECONDS = 4.0
CHANGES_PER_SECOND, MAX_CHANGES_AT_ONCE = 0.5, 1000
"""Changes of jobs by one caller: for long, and at once, as many as an array may have jobs.

Each adds a row to the journal, and rows of a job are kept for as long as it has not ended.
"""
MANY_OWNERS = 1024
MAX_WAITING = 1000
"""Jobs of an owner that wait for others, as many as a submission may have."""


class OwnerBuckets:
    """A token bucket for each owner. Full ones are forgotten: they are like those of owners who are not known."""

    def __init__(self, per_second: float, capacity: float, clock: Clock) -> None:
        """
        Args:
            per_second: Tokens that come back each second, above 0.
            capacity: Most tokens of an owner, at least 1.
            clock: Source of time.
        """
        self._per_second, self._capacity, self._clock = per_second, capacity, clock
        self._buckets: dict[str, TokenBucket] = {}

    @property
    def owners(self) -> frozenset[str]:
        """Owners whose buckets are kept."""
        return frozenset(self._buckets)

    def take_tokens(self, owner: str, count: int = 1) -> float:
        """Take tokens; returns 0, or after how many seconds there are enough: then none was taken.

        Args:
            owner: Whose tokens.
            count: How many, at least 1.
        """
        now = self._clock.monotonic()
        if len(self._buckets) >= MANY_OWNERS:
            self._buckets = {owner: bucket for owner, bucket in self._buckets.items() if not bucket.at(now).is_full}
        known = self._buckets.get(owner)
        bucket = known.at(now) if known else TokenBucket.full(self._per_second, self._capacity, now)
        reduced = bucket.without_tokens(count)
        if reduced is None:
            return bucket.wait_seconds(count)
        self._buckets[owner] = reduced
        return 0.0


class OwnerLimits:
    """Counts the jobs that each owner has and submits. Operators and services are bound by the limits, too."""

    def __init__(self, max_jobs: int, submissions_per_second: float, clock: Clock) -> None:
        """
        Args:
            max_jobs: Most jobs of an owner that are not in a final state.
            submissions_per_second: Jobs that an owner may submit in a second for long; as many as in four seconds may
                come at once, and more of them in one submission after a pause, which then takes as much longer.
            clock: Source of time.
        """
        self._max_jobs = max_jobs
        self._per_second = submissions_per_second
        self._submissions = OwnerBuckets(
            submissions_per_second, max(1.0, _BURST_SECONDS * submissions_per_second), clock
        )
        self._changes = OwnerBuckets(CHANGES_PER_SECOND, MAX_CHANGES_AT_ONCE, clock)

    def count_submission(self, owner: str, jobs: int = 1) -> None:
        """Count a call of SubmitJobs.

        Args:
            owner: Who makes it.
            jobs: How many jobs it submits; one without any counts as one.

        Raises:
            LimitExceededError: the owner submits too many; this one is not counted.
        """
        wait = self._submissions.take_tokens(owner, max(1, jobs))
        if wait:
            raise LimitExceededError(
                f"{owner} submits too often: at most {self._per_second:g} jobs a second "
                f"(job_manager.max_submissions_per_second); try again in {wait:.2f} s"
            )

    def count_change(self, caller: str) -> None:
        """Count a call that changes a job. It counts as a submission, too: each may lead to a plan.

        Args:
            caller: Who makes it.

        Raises:
            LimitExceededError: the caller makes too many; this one changes nothing.
        """
        self.count_submission(caller)
        wait = self._changes.take_tokens(caller)
        if wait:
            raise LimitExceededError(
                f"{caller} changes jobs too often: at most {MAX_CHANGES_AT_ONCE} at once, and one in "
                f"{1 / CHANGES_PER_SECOND:g} s for long; try again in {wait:.2f} s"
            )

    def check_jobs(self, owner: str, active: Iterable[Job], added: int) -> None:
        """Refuse jobs that would be too many.

        Args:
            owner: Who submits them.
            active: All jobs that are not in a final state.
            added: How many are submitted.

        Raises:
            LimitExceededError: the owner would have too many.
        """
        present = sum(job.owner == owner for job in active)
        if present + added > self._max_jobs:
            raise LimitExceededError(
                f"{owner} has {present} jobs that have not ended and submits {added} more: at most {self._max_jobs} "
                "(job_manager.max_jobs_per_owner); none was submitted"
            )

    def check_waiting(self, owner: str, active: Iterable[Job], added: int) -> None:
        """Refuse jobs that wait for others where these would be too many: one end may concern all of them in a step.

        Args:
            owner: Who submits them.
            active: All jobs that are not in a final state.
            added: How many are submitted that wait for others.

        Raises:
            LimitExceededError: the owner would have too many.
        """
        present = sum(job.owner == owner and bool(job.waits_for) for job in active) if added else 0
        if present + added > MAX_WAITING:
            raise LimitExceededError(
                f"{owner} has {present} jobs that wait for others and submits {added} more: at most {MAX_WAITING}; "
                "none was submitted"
            )
