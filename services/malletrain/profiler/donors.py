"""Who gives nodes to a profile: the least recently interrupted job first, one job at a time, none to zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Giver:
    """A job that could give nodes.

    Attributes:
        job_id: The job.
        nodes: What it has.
        scales: Permitted scales in nodes, ascending.
        steady: It trains, and no change of its scale is under way.
    """

    job_id: str
    nodes: int
    scales: tuple[int, ...]
    steady: bool

    def after_giving(self, nodes: int) -> int:
        """The largest permitted scale that gives away so many nodes, or the smallest one where none does."""
        smaller = [scale for scale in self.scales if scale < self.nodes]
        if not smaller:
            return self.nodes
        return max((scale for scale in smaller if scale <= self.nodes - nodes), default=smaller[0])

    @property
    def spare(self) -> int:
        """Nodes that it could give at most: never all, never below its smallest scale."""
        return self.nodes - self.after_giving(self.nodes)


@dataclass(frozen=True)
class Ledger:
    """Who has been interrupted for profiles.

    Attributes:
        turns: Number of the newest interruption of each job, counted over all jobs.
        counts: How often each job has been interrupted.
    """

    turns: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def interrupted(self, job_id: str) -> Ledger:
        """The ledger after one more interruption."""
        turn = 1 + max(self.turns.values(), default=0)
        return Ledger({**self.turns, job_id: turn}, {**self.counts, job_id: self.counts.get(job_id, 0) + 1})

    def only(self, job_ids: Sequence[str]) -> Ledger:
        """Without jobs that have ended."""
        known = set(job_ids)
        return Ledger(
            {name: turn for name, turn in self.turns.items() if name in known},
            {name: count for name, count in self.counts.items() if name in known},
        )


def next_donor(givers: Sequence[Giver], ledger: Ledger) -> Giver | None:
    """The job whose last interruption is longest ago, of those that can give anything; earlier jobs first of equals."""
    able = [giver for giver in givers if giver.steady and giver.spare > 0]
    return min(able, key=lambda giver: (ledger.turns.get(giver.job_id, 0), giver.job_id), default=None)
