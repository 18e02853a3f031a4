"""By remaining work: every member gets the fewest GPUs with which all end within the shortest time that is possible."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence

from malletrain.fleet.baselines import longest_first
from malletrain.fleet.rates import RateTable


def min_gpus(table: RateTable, work: Mapping[int, float], gpus: int) -> dict[int, int]:
    """GPUs of each member, so that the last end is as early as possible, and none has more than that needs.

    The member that ends last gets the next number of GPUs on which it is faster, as long as there are enough: no other
    division lets it end earlier. With equal work this makes the slowest member as fast as possible.

    Args:
        table: Rates.
        work: Samples that each member still needs; at most as many members as GPUs.
        gpus: GPUs to divide.
    """
    counts = dict.fromkeys(work, 1)
    remaining_gpus = gpus - len(work)
    rows = {member: table.rows[member] for member in work}
    last = [(-samples / rows[member][0], place, member) for place, (member, samples) in enumerate(work.items())]
    heapq.heapify(last)
    while last:
        _, place, member = last[0]
        row, own = rows[member], counts[member]
        count = _next_faster(row, own, min(own + remaining_gpus, gpus))
        if not count:
            break
        remaining_gpus -= count - own
        counts[member] = count
        heapq.heapreplace(last, (-work[member] / row[count - 1], place, member))
    end = max((samples / rows[member][counts[member] - 1] for member, samples in work.items()), default=0.0)
    # Of members that would have ended together, some got faster for nothing.
    for member, samples in work.items():
        if counts[member] > 1:
            row = rows[member]
            counts[member] = next(count for count, rate in enumerate(row, 1) if samples / rate <= end)
    return counts


def _next_faster(row: Sequence[float], own: int, max_gpus: int) -> int:
    """The fewest GPUs, more than these and at most so many, on which a member is faster; 0: there are none."""
    rate = row[own - 1]
    for count in range(own, max_gpus):
        if row[count] > rate:
            return count + 1
    return 0


def replan_counts(
    table: RateTable, work: Mapping[int, float], counts: Mapping[int, int], gpus: int, stall_s: float
) -> dict[int, int]:
    """GPUs of members that train now, from those that they have.

    Members that train get other numbers of GPUs if the last end is earlier by more than the stall, or if those that
    wait would find none otherwise.

    Args:
        table: Rates.
        work: Samples that each member is believed to need.
        counts: GPUs of those that train already.
        gpus: All GPUs; at least as many as the members in `counts` have.
        stall_s: Seconds that a change of a member's GPUs costs it.
    """
    waiting = {member: samples for member, samples in work.items() if member not in counts}
    if len(work) > gpus:
        return dict.fromkeys((*counts, *longest_first(waiting, table)[: gpus - len(counts)]), 1)
    free = gpus - sum(counts.values())
    if len(waiting) > free or not counts:
        return min_gpus(table, work, gpus)
    continued = {**counts, **min_gpus(table, waiting, free)} if waiting else dict(counts)
    before = max(work[m] / table.rate(m, count) for m, count in continued.items())
    if not _may_gain(table, work, continued, gpus, stall_s, before, exempt=waiting):
        return continued
    wanted = min_gpus(table, work, gpus)
    after = max(
        work[m] / table.rate(m, count) + (stall_s if count != counts.get(m, count) else 0.0)
        for m, count in wanted.items()
    )
    return wanted if after < before else continued


def _may_gain(
    table: RateTable,
    work: Mapping[int, float],
    counts: Mapping[int, int],
    gpus: int,
    stall_s: float,
    before: float,
    exempt: Container[int] = (),
) -> bool:
    """Whether there are enough GPUs for each member to end before this time, stalls of all but some included.

    Where there are not, no division is worth a change, and none need be searched.
    """
    needed = 0
    for member, held in counts.items():
        samples = work[member]
        for count, rate in enumerate(table.rows[member][:gpus], 1):
            stalls = count != held and member not in exempt
            if samples / rate + (stall_s if stalls else 0.0) < before:
                needed += count
                break
        else:
            return False
        if needed > gpus:
            return False
    return True
