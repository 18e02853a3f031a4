"""A space-shared machine: its free nodes, and when the running jobs are expected to end."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """The reservation of the head of the queue (Lifka 1995, "The ANL/IBM SP scheduling system").

    Attributes:
        start_s: Shadow time: when enough nodes will be free for the head, by the users' estimates.
        extra: Number of nodes that will be free then and that the head does not need.
    """

    start_s: float
    extra: int


class FreeNodes:
    """The free nodes of a machine as sorted, disjoint, non-touching ranges of indices."""

    def __init__(self, nodes: int) -> None:
        self.count = nodes
        self._starts = [0]
        self._stops = [nodes]

    def take(self, count: int) -> tuple[range, ...]:
        """Take the lowest free nodes; `count` is at most `self.count`."""
        taken = []
        missing = count
        used_up = 0
        while missing:
            start, stop = self._starts[used_up], self._stops[used_up]
            if stop - start > missing:
                stop = self._starts[used_up] = start + missing
            else:
                used_up += 1
            taken.append(range(start, stop))
            missing -= stop - start
        del self._starts[:used_up], self._stops[:used_up]
        self.count -= count
        return tuple(taken)

    def give_back(self, ranges: tuple[range, ...]) -> None:
        """Free nodes that were taken."""
        for freed in ranges:
            self._insert(freed.start, freed.stop)
            self.count += len(freed)

    def _insert(self, start: int, stop: int) -> None:
        starts, stops = self._starts, self._stops
        index = bisect_left(starts, start)
        joins_left = index > 0 and stops[index - 1] == start
        joins_right = index < len(starts) and starts[index] == stop
        if joins_left and joins_right:
            stops[index - 1] = stops[index]
            del starts[index], stops[index]
        elif joins_left:
            stops[index - 1] = stop
        elif joins_right:
            starts[index] = start
        else:
            starts.insert(index, start)
            stops.insert(index, stop)


class ExpectedEnds:
    """Expected ends of running jobs, sorted. Arrays make a reservation take microseconds with thousands of jobs."""

    def __init__(self, nodes: int) -> None:
        self._ends = np.empty(nodes, dtype=np.float64)
        self._nodes = np.empty(nodes, dtype=np.int64)
        self._count = 0

    def add(self, end_s: float, nodes: int) -> None:
        """Add a running job that is expected to end at `end_s`."""
        ends, sizes, count = self._ends, self._nodes, self._count
        index = int(ends[:count].searchsorted(end_s))
        ends[index + 1 : count + 1] = ends[index:count]
        sizes[index + 1 : count + 1] = sizes[index:count]
        ends[index] = end_s
        sizes[index] = nodes
        self._count = count + 1

    def remove(self, end_s: float, nodes: int) -> None:
        """Remove a job of `nodes` nodes that was expected to end at `end_s`; any of several equal ones."""
        ends, sizes, count = self._ends, self._nodes, self._count
        index = int(ends[:count].searchsorted(end_s))
        while sizes[index] != nodes:
            index += 1
        ends[index : count - 1] = ends[index + 1 : count]
        sizes[index : count - 1] = sizes[index + 1 : count]
        self._count = count - 1

    def reserve(self, wanted: int, free: int, now_s: float) -> BackfillReservation:
        """The first time at which `wanted` nodes, which are more than `free`, will be free.

        A job that runs longer than its estimate is expected to end now.
        """
        ends = self._ends[: self._count]
        freed = self._nodes[: self._count].cumsum()
        shadow_s = max(now_s, float(ends[freed.searchsorted(wanted - free)]))
        # Every job that ends at the shadow time frees its nodes, also beyond what the head needs.
        ended = int(ends.searchsorted(shadow_s, side="right"))
        return BackfillReservation(shadow_s, free + int(freed[ended - 1]) - wanted)
