"""What outlives single looks at a job: how its points have moved, and what its family shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.profiler.curve import PairStall
from malletrain.profiler.evidence import Memory, faded, remember
from malletrain.profiler.families import Member, contradicts, shared_knots, shared_rescales
from malletrain.profiler.knots import Knot


class Kinship:
    """Memories by job, members by family, and who has left theirs."""

    def __init__(
        self,
        members_kept: int,
        memories: Mapping[str, Memory] | None = None,
        families: Mapping[str, Sequence[Member]] | None = None,
        left: Sequence[str] = (),
    ) -> None:
        """Go on from what was stored.

        Args:
            members_kept: Newest jobs of a family whose points are kept.
            memories: By job.
            families: By name, oldest member first.
            left: Jobs that have left their families.
        """
        self._members_kept = members_kept
        self.memories = dict(memories or {})
        self.families = {name: tuple(members) for name, members in (families or {}).items()}
        self.left = set(left)

    def learn(
        self, job_id: str, family: str, points: Sequence[Knot], rescales: Sequence[PairStall], contradiction: float
    ) -> bool:
        """Take over what is measured of a job; whether its family is affected.

        A job whose points contradict those of its family leaves it for good, and takes its points along.
        """
        self.memories[job_id] = remember(self.memories.get(job_id, Memory()), points, contradiction)
        if not family or job_id in self.left or not points:
            return False
        others = [member for member in self.families.get(family, ()) if member.job_id != job_id]
        if contradicts(points, shared_knots(others)):
            self.left.add(job_id)
            self.families[family] = tuple(others)
            return True
        mine = Member(job_id, tuple(points), tuple(rescales))
        before = self.families.get(family, ())
        self.families[family] = (*others, mine)[-self._members_kept :]
        return self.families[family] != before

    def forget(self, job_id: str) -> None:
        """A job has ended: what its family has of it stays."""
        self.memories.pop(job_id, None)
        self.left.discard(job_id)

    def has_left(self, job_id: str) -> bool:
        """Whether a job has left its family."""
        return job_id in self.left

    def faded(self, job_id: str, points: Sequence[Knot], now: float, drift_per_hour: float) -> list[Knot]:
        """Points with the errors that they have by now."""
        return faded(points, self.memories.get(job_id, Memory()), now, drift_per_hour)

    def shared(self, job_id: str, family: str) -> list[Knot]:
        """What the others of its family know; nothing for a job that has left or has none."""
        if not family or job_id in self.left:
            return []
        return shared_knots(self.families.get(family, ()), but=job_id)

    def rescales(self, job_id: str, family: str) -> list[PairStall]:
        """Single rescales of the others of its family."""
        if not family or job_id in self.left:
            return []
        return shared_rescales(self.families.get(family, ()), but=job_id)
