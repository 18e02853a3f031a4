"""Entries of the queue: jobs, and fleets, whose members are admitted together and take one place. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.job_manager.jobs import Job


@dataclass(frozen=True)
class QueueEntry:
    """What is admitted at once.

    Attributes:
        jobs: One job, or the members of a fleet; at least one.
    """

    jobs: tuple[Job, ...]

    @property
    def id(self) -> str:
        """Identifier of the fleet, or of the job."""
        return self.jobs[0].fleet_id or self.jobs[0].id

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.jobs[0].owner

    @property
    def burst_buffer_gb(self) -> int:
        """What all members together ask for, in GB."""
        return sum(job.spec.burst_buffer_gb for job in self.jobs)

    @property
    def passed_over(self) -> int:
        """How many times it was passed over."""
        return max(job.passed_over for job in self.jobs)


def queue_entries(jobs: Iterable[Job]) -> list[QueueEntry]:
    """The entries that jobs make, in the order of their first jobs."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.fleet_id or job.id, []).append(job)
    return [QueueEntry(tuple(members)) for members in found.values()]
