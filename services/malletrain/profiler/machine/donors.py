"""Which jobs give nodes to profile runs, so that all are interrupted equally often. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Donor:
    """A job that could give nodes.

    Attributes:
        job_id: The job.
        nodes: Number of nodes that it has.
        scales: Permitted scales in nodes, ascending.
        steady: Whether it trains and no change of its scale is under way.
    """

    job_id: str
    nodes: int
    scales: tuple[int, ...]
    steady: bool

    def scale_after_giving(self, nodes: int) -> int:
        """The largest permitted scale that frees so many nodes; the smallest one where none does."""
        smaller = [scale for scale in self.scales if scale < self.nodes]
        if not smaller:
            return self.nodes
        return max((scale for scale in smaller if scale <= self.nodes - nodes), default=smaller[0])

    @property
    def spare(self) -> int:
        """Number of nodes that it could give at most. It keeps at least its smallest scale."""
        return self.nodes - self.scale_after_giving(self.nodes)


@dataclass(frozen=True)
class InterruptionHistory:
    """Which jobs have given nodes to profiles.

    Attributes:
        latest: Sequence number of each job's newest interruption, counted over all jobs.
        counts: Number of interruptions of each job.
    """

    latest: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def interrupted(self, job_id: str) -> InterruptionHistory:
        """The history after one more interruption."""
        number = 1 + max(self.latest.values(), default=0)
        return InterruptionHistory(
            {**self.latest, job_id: number}, {**self.counts, job_id: self.counts.get(job_id, 0) + 1}
        )

    def only(self, job_ids: Collection[str]) -> InterruptionHistory:
        """The history of these jobs alone."""
        return InterruptionHistory(
            {job_id: number for job_id, number in self.latest.items() if job_id in job_ids},
            {job_id: count for job_id, count in self.counts.items() if job_id in job_ids},
        )


def next_donor(candidates: Sequence[Donor], history: InterruptionHistory) -> Donor | None:
    """The steady job with nodes to spare whose last interruption is longest ago; ties go to the earlier job."""
    able = [donor for donor in candidates if donor.steady and donor.spare > 0]
    return min(able, key=lambda donor: (history.latest.get(donor.job_id, 0), donor.job_id), default=None)
