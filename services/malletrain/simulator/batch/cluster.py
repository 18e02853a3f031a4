"""A space-shared machine: which nodes are free, and when the users say that the others will be."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the head of the queue is promised (Lifka 1995, "The ANL/IBM SP scheduling system").

    Attributes:
        start_s: The shadow time: when, by the users' estimates, enough nodes will be free for the head.
        extra: How many nodes will be free then beyond those that the head needs.
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
    """When running jobs end by their estimates, sorted.

    In arrays, so that a reservation costs microseconds with thousands of running jobs; there are never more of them
    than nodes.
    """

    def __init__(self, nodes: int) -> None:
        self._ends = np.empty(nodes, dtype=np.float64)
        self._nodes = np.empty(nodes, dtype=np.int64)
        self._count = 0

    def add(self, end_s: float, nodes: int) -> None:
        """A job starts that is expected to end at `end_s`."""
        ends, sizes, count = self._ends, self._nodes, self._count
        index = int(ends[:count].searchsorted(end_s))
        ends[index + 1 : count + 1] = ends[index:count]
        sizes[index + 1 : count + 1] = sizes[index:count]
        ends[index] = end_s
        sizes[index] = nodes
        self._count = count + 1

    def remove(self, end_s: float, nodes: int) -> None:
        """A job ends that was expected to at `end_s`; which of several that are alike does not matter."""
        ends, sizes, count = self._ends, self._nodes, self._count
        index = int(ends[:count].searchsorted(end_s))
        while sizes[index] != nodes:
            index += 1
        ends[index : count - 1] = ends[index + 1 : count]
        sizes[index : count - 1] = sizes[index + 1 : count]
        self._count = count - 1

    def reserve(self, wanted: int, free: int, now_s: float) -> Reservation:
        """The first moment at which `wanted` nodes, more than `free`, will be free by the estimates.

        A job that outlives its estimate is expected to end now.
        """
        ends = self._ends[: self._count]
        freed = self._nodes[: self._count].cumsum()
        shadow_s = max(now_s, float(ends[freed.searchsorted(wanted - free)]))
        # All that ends at the shadow time is free then, not only what the head needs.
        ended = int(ends.searchsorted(shadow_s, side="right"))
        return Reservation(shadow_s, free + int(freed[ended - 1]) - wanted)
