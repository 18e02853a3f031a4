"""The best objective with one job at a given scale, for every job and scale, and with one node more or less. Pure.

The dynamic program is run twice, over the jobs from the last to the first and from the first to the last. With the
best values P_j(c) of the jobs before job j on c nodes and S_j(c) of those after it, the best objective with job j at
scale s is

    v_j(s) + max over c of  P_j(c) + S_j(pool - s - c)

so that all alternatives together cost about as much as two solves. Where owners have limits, the same is done twice:
within the jobs of an owner, and among the owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from malletrain.allocator.problem.objective import ScaleValues
from malletrain.allocator.solvers.knapsack import Floats, Ints, best_values
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup

IMPOSSIBLE = float("-inf")
_CELLS = 1_000_000
"""Entries of the largest array of a join."""


@dataclass(frozen=True)
class _Row:
    """Items of one knapsack: the best values of those before and after each of them.

    Attributes:
        before: Best value of the first k items on c nodes, shape (items + 1, capacity + 1).
        after: Best value of the items from k on, same shape.
    """

    before: Floats
    after: Floats

    @classmethod
    def of(cls, items: Sequence[tuple[Ints, Floats]], capacity: int) -> _Row:
        """From the sizes and values of each item."""
        return cls(_tables(items[::-1], capacity)[::-1], _tables(items, capacity))

    @property
    def best(self) -> Floats:
        """Best value of all items, by capacity."""
        best: Floats = self.after[0]
        return best

    def without(self, item: int, capacity: int) -> float:
        """Best value of all items but one on so many nodes."""
        first, second = self.before[item, : capacity + 1], self.after[item + 1, : capacity + 1]
        return float(np.max(first + second[::-1]))

    def all_without(self, item: int) -> Floats:
        """Best value of all items but one, by capacity."""
        return _join(self.before[item], self.after[item + 1])


class ForcedOptima:
    """Best objectives of one problem under conditions. They hold for at most one node more than the pool has."""

    def __init__(self, per_job: Sequence[ScaleValues], pool: int, groups: Sequence[OwnerGroup] = ()) -> None:
        """Run the dynamic programs.

        Args:
            per_job: Scales of each job, of up to pool + 1 nodes.
            pool: Number of nodes, at least 0.
            groups: Owners with a limit.
        """
        limited = {job for group in groups for job in group.jobs}
        free = tuple(job for job in range(len(per_job)) if job not in limited)
        members = [(group.jobs, group.limit) for group in groups] + ([(free, pool + 1)] if free else [])
        self._per_job = per_job
        self._pool = pool
        self._place = {job: (at, own) for at, (jobs, _) in enumerate(members) for own, job in enumerate(jobs)}
        self._rows = [
            _Row.of([(per_job[job].sizes, per_job[job].values) for job in jobs], min(limit, pool + 1))
            for jobs, limit in members
        ]
        self._owners = _Row.of([(np.arange(len(row.best)), row.best) for row in self._rows], pool + 1)
        self._kept: dict[int, tuple[Floats, Floats]] = {}

    def best(self, nodes: int) -> float:
        """The best objective on so many nodes, 0 to pool + 1."""
        return float(self._owners.best[nodes])

    def with_scale(self, job: int, place: int) -> float:
        """The best objective with a job at a scale; minus infinity where it does not fit.

        Args:
            job: Index of the job.
            place: Index of the scale in the job's `sizes`.
        """
        scales = self._per_job[job]
        size, value = int(scales.sizes[place]), float(scales.values[place])
        at, own = self._place[job]
        row = self._rows[at]
        remaining, own_remaining = self._pool - size, min(len(row.best) - 1, self._pool) - size
        if own_remaining < 0:
            return IMPOSSIBLE
        if len(self._rows) == 1:
            return value + row.without(own, own_remaining)
        mine, others = self._without(job)
        return value + float(
            np.max(mine[: own_remaining + 1] + others[remaining - own_remaining : remaining + 1][::-1])
        )

    def _without(self, job: int) -> tuple[Floats, Floats]:
        """For every capacity the best value of the owner's other jobs, and that of the other owners' jobs."""
        if job not in self._kept:
            at, own = self._place[job]
            self._kept = {job: (self._rows[at].all_without(own), self._owners.all_without(at))}
        return self._kept[job]


def _tables(items: Sequence[tuple[Ints, Floats]], capacity: int) -> Floats:
    starts = np.cumsum([0, *(len(sizes) for sizes, _ in items)]).astype(np.int64)
    sizes = np.concatenate([np.zeros(0, np.int64), *(sizes for sizes, _ in items)])
    values = np.concatenate([np.zeros(0), *(values for _, values in items)])
    return best_values(starts, sizes, values, capacity)


def _join(first: Floats, second: Floats) -> Floats:
    """For every capacity c the largest first[a] + second[c - a]. Both of the same length."""
    length = len(first)
    windows = sliding_window_view(np.concatenate([np.full(length - 1, IMPOSSIBLE), second]), length)
    joined = np.empty(length)
    rows = max(1, _CELLS // length)
    for begin in range(0, length, rows):
        joined[begin : begin + rows] = (windows[begin : begin + rows, ::-1] + first).max(axis=1)
    return joined
