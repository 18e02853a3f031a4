"""Which members train together, and on how many GPUs each: createFlotilla (Guan et al., MLSys 2020, Algorithm 2)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.fleet.problem import RateTolerance
from malletrain.fleet.rates import RateTable

_DIGITS = 9
"""Distances between rates are rounded to 1e-9, so that ties do not hang on the order of additions."""
_MARGIN = 1e-9
"""More than rounding changes, as a share of 1 and of the reference rate."""


@dataclass(frozen=True, slots=True)
class Flotilla:
    """Members that train at the same time.

    Attributes:
        members: Positions of the members in the ensemble, in the order in which they were chosen.
        gpus: How many GPUs each of them has, in the same order.
    """

    members: tuple[int, ...]
    gpus: tuple[int, ...]

    def rates(self, table: RateTable) -> list[float]:
        """Samples/s of each member on its GPUs."""
        return [table.rate(member, count) for member, count in zip(self.members, self.gpus, strict=True)]


def create_flotilla(table: RateTable, candidates: Sequence[int], gpus: int, tolerance: RateTolerance) -> Flotilla:
    """Choose members whose rates are alike, and give the GPUs that are left to the slowest.

    The rate of the fastest candidate on one GPU is the reference. It is fixed and the GPUs left only get fewer, so that
    one pass over all distances from it, sorted once, finds what a search in each step finds: O(N·M·log(N·M)).

    Args:
        table: Rates of all members, at up to `gpus` GPUs at least.
        candidates: Positions of the members to choose from, ascending; at least one.
        gpus: GPUs to give away, at least 1.
        tolerance: How far from the reference a rate may be.
    """
    first = max(candidates, key=lambda member: (table.rate(member, 1), -member))
    members, counts, remaining_gpus = [first], [1], gpus - 1
    chosen = {first}
    for _, count, member in _alike(table, candidates, first, gpus, tolerance):
        if remaining_gpus == 0 or len(members) == len(candidates):
            break
        if member in chosen or count > remaining_gpus:
            continue
        chosen.add(member)
        members.append(member)
        counts.append(count)
        remaining_gpus -= count
    return top_up(table, Flotilla(tuple(members), tuple(counts)), gpus)


def top_up(table: RateTable, flotilla: Flotilla, gpus: int) -> Flotilla:
    """Give the rest of so many GPUs, one by one, to the slowest member, until it may have no more."""
    counts, remaining_gpus = list(flotilla.gpus), gpus - sum(flotilla.gpus)
    slowest = [(rate, place) for place, rate in enumerate(flotilla.rates(table))]
    heapq.heapify(slowest)
    while remaining_gpus > 0:
        _, place = slowest[0]
        member = flotilla.members[place]
        if counts[place] == table.most(member, gpus):
            break
        counts[place] += 1
        remaining_gpus -= 1
        heapq.heapreplace(slowest, (table.rate(member, counts[place]), place))
    return Flotilla(flotilla.members, tuple(counts))


def _alike(
    table: RateTable, candidates: Sequence[int], first: int, gpus: int, tolerance: RateTolerance
) -> list[tuple[float, int, int]]:
    """Distance, GPUs and member of all that is near the reference rate, nearest first, then fewest GPUs."""
    reference = table.rate(first, 1)
    largest = tolerance.around(reference)
    # Few are near, and rounding takes long.
    lowest, highest = reference - largest - _MARGIN * (1 + reference), reference + largest + _MARGIN * (1 + reference)
    near = []
    for member in candidates:
        if member == first:
            continue
        for count, rate in enumerate(table.rows[member][: table.most(member, gpus)], 1):
            if lowest <= rate <= highest:
                distance = round(abs(rate - reference), _DIGITS)
                if distance <= largest:
                    near.append((distance, count, member))
    near.sort()
    return near
