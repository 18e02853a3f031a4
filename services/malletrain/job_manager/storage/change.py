"""What is stored of a stimulus, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.job_manager.machine.fair_share import OwnerUse
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.usage import UsageRow


@dataclass(frozen=True)
class Submission:
    """What a request_id stands for: a digest of the specs, and the jobs they became."""

    request_id: str
    digest: str
    job_numbers: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """What a stimulus changed, or several one after another.

    Attributes:
        jobs: Jobs that changed, as they are now.
        events: New rows of the journal.
        generation: Generation of the plan, if one was applied.
        submission: The submission, if jobs were submitted with a request_id.
        uses: Entries of the ledger that changed, by owner.
        forgotten: Owners who are no longer in the ledger.
        removed_jobs: Numbers of ended jobs that are no longer kept.
        removed_requests: The `request_id` of submissions that are no longer kept.
        usage: Rows of the usage that are new or differ, by number of the job and day.
    """

    jobs: Collection[Job] = ()
    events: Sequence[JobEvent] = ()
    generation: int | None = None
    submission: Submission | None = None
    uses: Mapping[str, OwnerUse] = field(default_factory=dict)
    forgotten: Collection[str] = ()
    removed_jobs: Collection[int] = ()
    removed_requests: Collection[str] = ()
    usage: Mapping[tuple[int, int], UsageRow] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        parts = (self.jobs, self.events, self.submission, self.uses, self.forgotten, self.removed_jobs, self.usage)
        return self.generation is not None or any(parts)

    def followed_by(self, later: Change) -> Change:
        """Both as one. Neither may be a submission with a request_id."""
        assert self.submission is None, "a submission is stored alone"
        assert later.submission is None, "a submission is stored alone"
        return Change(
            tuple(({job.number: job for job in self.jobs} | {job.number: job for job in later.jobs}).values()),
            (*self.events, *later.events),
            self.generation if later.generation is None else later.generation,
            None,
            {owner: use for owner, use in self.uses.items() if owner not in later.forgotten} | dict(later.uses),
            {*later.forgotten, *(owner for owner in self.forgotten if owner not in later.uses)},
            {*self.removed_jobs, *later.removed_jobs},
            {*self.removed_requests, *later.removed_requests},
            {**self.usage, **later.usage},
        )
