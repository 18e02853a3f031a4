"""Jobs that scale alike: trials of one model share curve and rescale costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.profiler.curve import PairStall
from malletrain.profiler.fits import interpolated
from malletrain.profiler.knots import LEAST_RATE, Knot

SPREAD = 0.03
"""Relative error of a point when it stands for another job of the family."""

_LEAST_CONTRADICTION = 0.15
_SURE = 0.1


@dataclass(frozen=True)
class Member:
    """What one job has given to its family: points and single rescales."""

    job_id: str
    knots: tuple[Knot, ...]
    rescales: tuple[PairStall, ...] = ()


def shared_knots(members: Sequence[Member], but: str = "") -> list[Knot]:
    """One point per scale: the members' points, each weighing by its error, as points for another job.

    Args:
        members: The family.
        but: A job whose own points do not count.
    """
    by_nodes: dict[int, list[Knot]] = {}
    for member in members:
        for knot in member.knots if member.job_id != but else ():
            if knot.rate >= LEAST_RATE:
                by_nodes.setdefault(knot.nodes, []).append(knot)
    return [_merged(by_nodes[nodes]) for nodes in sorted(by_nodes)]


def shared_rescales(members: Sequence[Member], but: str = "") -> list[PairStall]:
    """Single rescales of the members, oldest member first."""
    return [rescale for member in members if member.job_id != but for rescale in member.rescales]


def median_up(rescales: Sequence[PairStall]) -> float | None:
    """Median stall of growths in seconds; None without any."""
    stalls = [entry.seconds for entry in rescales if entry.to_nodes > entry.from_nodes]
    return statistics.median(stalls) if stalls else None


def median_down(rescales: Sequence[PairStall]) -> float | None:
    """Median stall of shrinks in seconds; None without any."""
    stalls = [entry.seconds for entry in rescales if entry.to_nodes < entry.from_nodes]
    return statistics.median(stalls) if stalls else None


def contradicts(own: Sequence[Knot], family: Sequence[Knot]) -> bool:
    """Whether a job's own points say that it is not of the family.

    One point that is sure (error within 10 %) and lies further off the family's curve than both errors explain, and
    than 15 % in any case, is enough. Scales outside those of the family say nothing.

    Args:
        own: Points measured on the job.
        family: Points of the others, nodes ascending.
    """
    logs = [(math.log(knot.nodes), math.log(knot.rate)) for knot in family]
    for knot in own:
        if knot.shared or knot.error > _SURE or knot.rate < LEAST_RATE or not logs:
            continue
        if not family[0].nodes <= knot.nodes <= family[-1].nodes:
            continue
        off = abs(math.log(knot.rate) - interpolated(math.log(knot.nodes), logs))
        nearest = _nearest(family, knot.nodes)
        between = 0.0 if nearest.nodes == knot.nodes else 0.1
        if off > max(_LEAST_CONTRADICTION, 2 * math.hypot(knot.error, nearest.error, between)):
            return True
    return False


def with_family(own: Sequence[Knot], family: Sequence[Knot]) -> list[Knot]:
    """A job's points, filled up with its family's where it has not been itself or knows less."""
    found: Mapping[int, Knot] = {knot.nodes: knot for knot in family} | {
        knot.nodes: knot for knot in own if knot.error <= _SURE or knot.nodes not in {k.nodes for k in family}
    }
    return [found[nodes] for nodes in sorted(found)]


def _nearest(family: Sequence[Knot], nodes: int) -> Knot:
    return min(family, key=lambda knot: abs(math.log(knot.nodes / nodes)))


def _merged(knots: Sequence[Knot]) -> Knot:
    total = sum(knot.weight for knot in knots)
    log_rate = sum(knot.weight * math.log(knot.rate) for knot in knots) / total
    best = max(knots, key=lambda knot: knot.weight)
    return replace(
        best,
        rate=math.exp(log_rate),
        steps=sum(knot.steps for knot in knots),
        error=math.hypot(1 / math.sqrt(total), SPREAD),
        unix_seconds=max(knot.unix_seconds for knot in knots),
        shared=True,
    )
