"""Families: jobs that scale alike, such as the trials of one model, share curve and rescale costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from malletrain.model.scaling import MIN_RATE, RescaleStall
from malletrain.profiler.machine.fits import interpolate
from malletrain.profiler.machine.points import CurvePoint, CurveSource

_SPREAD = 0.03
"""Relative error that is added to a point when it stands for another job of the family."""

_SURE = 0.1
"""Relative error up to which a point counts as evidence against the family."""

_MIN_CONTRADICTION = 0.15
"""Distance from the family's curve (as a log) below which a point never contradicts it."""

_INTERPOLATION_ERROR = 0.1
"""Relative error of the family's curve between its points."""


@dataclass(frozen=True)
class FamilyMember:
    """What one job has contributed to its family: measured points and single rescales."""

    job_id: str
    points: tuple[CurvePoint, ...]
    rescales: tuple[RescaleStall, ...] = ()


@dataclass
class FamilyStore:
    """Members of each family, and the jobs that have left theirs.

    Attributes:
        members_kept: Number of newest members of a family whose points are kept.
        families: Members by the family's name, oldest first.
        left: Jobs whose points contradicted their family.
    """

    members_kept: int
    families: dict[str, tuple[FamilyMember, ...]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def update(self, job_id: str, family: str, points: Sequence[CurvePoint], rescales: Sequence[RescaleStall]) -> bool:
        """Record what is measured of a job.

        A job whose points contradict those of its family leaves it for good, and its points are removed.

        Returns:
            Whether the family has changed.
        """
        if not family or job_id in self.left or not points:
            return False
        others = self.others(job_id, family)
        if contradicts(points, shared_points(others)):
            self.left.add(job_id)
            self.families[family] = others
            return True
        before = self.families.get(family, ())
        member = FamilyMember(job_id, tuple(points), tuple(rescales))
        self.families[family] = (*others, member)[-self.members_kept :]
        return self.families[family] != before

    def others(self, job_id: str, family: str) -> tuple[FamilyMember, ...]:
        """The other members of a job's family; none for a job that has left it or has no family."""
        if not family or job_id in self.left:
            return ()
        return tuple(member for member in self.families.get(family, ()) if member.job_id != job_id)


def shared_points(members: Sequence[FamilyMember]) -> list[CurvePoint]:
    """The family's curve: one point per scale, the weighted mean of the members' points, nodes ascending."""
    by_nodes: dict[int, list[CurvePoint]] = {}
    for member in members:
        for point in member.points:
            if point.rate >= MIN_RATE:
                by_nodes.setdefault(point.nodes, []).append(point)
    return [_mean(by_nodes[nodes]) for nodes in sorted(by_nodes)]


def contradicts(own: Sequence[CurvePoint], family: Sequence[CurvePoint]) -> bool:
    """Whether a job's own points show that it scales differently from its family.

    One point is enough if its error is at most 10 % and it lies further from the family's curve than both errors
    explain, and further than 15 %. Points outside the family's scales show nothing.

    Args:
        own: Points measured on the job.
        family: Points of the others, nodes ascending.
    """
    logs = [(math.log(point.nodes), math.log(point.rate)) for point in family]
    for point in own:
        if not logs or point.source is CurveSource.FAMILY or point.relative_error > _SURE or point.rate < MIN_RATE:
            continue
        if not family[0].nodes <= point.nodes <= family[-1].nodes:
            continue
        distance = abs(math.log(point.rate) - interpolate(math.log(point.nodes), logs))
        nearest = min(family, key=lambda other: abs(math.log(other.nodes / point.nodes)))
        between = 0.0 if nearest.nodes == point.nodes else _INTERPOLATION_ERROR
        explained = 2 * math.hypot(point.relative_error, nearest.relative_error, between)
        if distance > max(_MIN_CONTRADICTION, explained):
            return True
    return False


def filled_from_family(own: Sequence[CurvePoint], family: Sequence[CurvePoint]) -> list[CurvePoint]:
    """A job's points, and its family's at scales where the job has none or only an uncertain one; nodes ascending."""
    by_nodes = {point.nodes: point for point in family}
    shared = set(by_nodes)
    by_nodes |= {point.nodes: point for point in own if point.relative_error <= _SURE or point.nodes not in shared}
    return [by_nodes[nodes] for nodes in sorted(by_nodes)]


def _mean(points: Sequence[CurvePoint]) -> CurvePoint:
    """The weighted geometric mean of points at one scale, as a point for another job of the family."""
    total = sum(point.weight for point in points)
    log_rate = sum(point.weight * math.log(point.rate) for point in points) / total
    return CurvePoint(
        points[0].nodes,
        math.exp(log_rate),
        steps=sum(point.steps for point in points),
        relative_error=math.hypot(1 / math.sqrt(total), _SPREAD),
        unix_seconds=max(point.unix_seconds for point in points),
        source=CurveSource.FAMILY,
    )
