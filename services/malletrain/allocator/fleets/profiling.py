"""Rates of members are measured while they train: on one GPU each first, then on more (FLEET's three steps). Pure.

The paper trains each member on 1, 2… M_t GPUs for 48 batches, the last 20 of which count. Here they are not separate
trainings, and scales are doubled from one to the next: shapes that are fitted to them fill the gaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.allocator.fleets.live_fleet import LiveFleet, LiveMember
from malletrain.fleet.problem import FleetPlanner

COUNTED_BATCHES = 20
"""Steps on which a rate must rest before it counts as measured; those before, at a new scale, are left out."""
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class Measuring:
    """GPUs of members while some of them are measured.

    Attributes:
        counts: GPUs of the members that train, by their places.
        what: What is measured, for people.
    """

    counts: dict[int, int]
    what: str


def profile_counts(live: LiveFleet, gpus: int) -> Measuring | None:
    """GPUs of members, so that rates that are not known get measured, side by side; None: nothing is to be measured.

    All members that still have to be measured on the fewest GPUs are, as many at a time as there are GPUs for. Members
    that train already come first. The others go on with what is left, on no more GPUs than they have, or on one.
    Nobody waits for a member whose rate did not come in time.
    """
    if live.divider is FleetPlanner.MILP:
        return None
    wanted = {place: _next(live, member, gpus) for place, member in enumerate(live.members)}
    levels = [level for level in wanted.values() if level]
    if not levels:
        return None
    level = min(levels)
    due = [place for place, wants in wanted.items() if wants == level]
    counts: dict[int, int] = {}
    unused = gpus
    for place in _running_first(live, due):
        if unused < level:
            break
        counts[place], unused = level, unused - level
    for place in _running_first(live, [place for place in wanted if place not in counts]):
        if not unused:
            break
        counts[place] = max(1, min(live.members[place].held, unused)) if place not in due else 1
        unused -= counts[place]
    names = f"{len(due)} of {len(live.members)} members on {level} GPU" + ("s" if level > 1 else "")
    return Measuring(counts, f"rates are measured: {names}")


def max_measured(live: LiveFleet) -> int:
    """M_t: members are measured on up to so many GPUs (supplement, profiling, steps 2 and 3)."""
    singles = [row[0] for row in live.table.rows]
    return max(math.ceil(max(singles) / min(singles)), 2 * live.gpus_per_node)


def awaits_first_rate(member: LiveMember, gpus: int) -> bool:
    """Whether nothing is known of a member's rate, and one is waited for.

    Nothing is waited for from a member that is late, or that needs more GPUs than there are.
    """
    return not member.known and member.late is None and 0 < member.least_from(1) <= gpus


def late_in_words(members: Sequence[LiveMember]) -> str:
    """Which members are planned by what is assumed of them, since their rates did not come in time; empty: none."""
    named = [
        f"{member.job_id} on {member.late.gpus} GPU{'s' if member.late.gpus > 1 else ''} in {member.late.seconds:g} s"
        for member in members
        if member.late is not None and member.late.gpus not in member.sure
    ]
    if not named:
        return ""
    more = f" and {len(named) - _MAX_NAMES} more" if len(named) > _MAX_NAMES else ""
    return f"rates are assumed that did not come in time: {', '.join(named[:_MAX_NAMES])}{more}"


def _next(live: LiveFleet, member: LiveMember, gpus: int) -> int:
    """The fewest GPUs on which a member still has to be measured; 0: none."""
    if awaits_first_rate(member, gpus):
        return member.least_from(1)
    if not (member.known and member.profiled) or member.late is not None or live.divider is FleetPlanner.LIST:
        return 0
    most = min(max_measured(live), gpus)
    levels = (member.least_from(1), *(2**power for power in range(1, most.bit_length())))
    wanted = (level for level in levels if level <= most and member.max_within(level) == level)
    return next((level for level in wanted if level not in member.sure), 0)


def _running_first(live: LiveFleet, places: list[int]) -> list[int]:
    return sorted(places, key=lambda place: (live.members[place].held == 0, place))
