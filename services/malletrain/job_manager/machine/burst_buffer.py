"""What of the quota of burst buffer is held and free. Pure.

A job holds what it asked for from its admission to its end, whether it has nodes or not. The sum is made from the jobs
whenever it is needed, so it can't differ from them, and is right after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.job_manager.machine.jobs import Job


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """How much of the quota of burst buffer jobs hold; amounts in GB.

    Attributes:
        granted_gb: What the operator grants.
        held_gb: What admitted jobs hold.
    """

    granted_gb: int
    held_gb: int

    @property
    def free_gb(self) -> int:
        """What is left; 0 where the operator has lowered the quota below what is held."""
        return max(0, self.granted_gb - self.held_gb)


def quota_use(jobs: Iterable[Job], granted_gb: int) -> QuotaUse:
    """What jobs hold of a quota."""
    return QuotaUse(granted_gb, sum(job.spec.burst_buffer_gb for job in jobs if job.admitted))
