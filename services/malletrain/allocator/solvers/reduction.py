"""Problem reduction: discards sizes that no optimum can contain, by a Lagrangian bound. Pure.

With a price p per node the objective is at most  p · pool + Σ_j max_s (v_j(s) − p · s). A solution that gives job j
size s is below this bound by at least  max_s' (v_j(s') − p · s') − (v_j(s) − p · s). If that puts it below a feasible
solution that is known already, no optimum contains s. This holds only if the pool is the jobs' only constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.problem.objective import ScaleValues

_HALVINGS = 14
_SWITCHES = 10
_MARGIN = 1e-10
"""Relative tolerance of the comparison with the known solution; far above that of ties, so that no tie is lost."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def reduce_sizes(per_job: Sequence[ScaleValues], pool: int) -> list[ScaleValues]:
    """The jobs without the sizes that no optimum contains; size 0 always stays."""
    if not per_job:
        return []
    starts = np.cumsum([0, *(len(scales.sizes) for scales in per_job)])
    sizes = np.concatenate([scales.sizes for scales in per_job])
    useful = maybe_optimal(starts, sizes, np.concatenate([scales.values for scales in per_job]), pool)
    useful[starts[:-1]] = True
    slim = []
    for scales, first in zip(per_job, starts.tolist(), strict=False):
        chosen = useful[first : first + len(scales.sizes)]
        slim.append(
            replace(scales, sizes=scales.sizes[chosen], values=scales.values[chosen], costs=scales.costs[chosen])
        )
    return slim


def maybe_optimal(starts: Ints, sizes: Ints, values: Floats, pool: int) -> Flags:
    """Whether an optimum may contain each size.

    Args:
        starts: Index of each job's first size, and the number of all sizes.
        sizes: Permitted sizes in nodes, for each job ascending from 0.
        values: Value of each size.
        pool: Number of nodes.

    Returns:
        Flags of the same shape as `sizes`; at least one is set for each job.
    """
    relaxation = _Relaxation(starts, sizes, values, pool)
    price = relaxation.price()
    useful: Flags = relaxation.bounds(price) >= relaxation.feasible_value(price) - _MARGIN * relaxation.magnitude
    # The sizes of the known solution are kept; should rounding drop one, 0 stands for it.
    useful[relaxation.starts] |= ~np.logical_or.reduceat(useful, relaxation.starts)
    return useful


class _Relaxation:
    """The problem in which every node has a price and the number of nodes has no limit."""

    def __init__(self, starts: Ints, sizes: Ints, values: Floats, pool: int) -> None:
        self.pool = pool
        self.sizes = sizes
        self.values = values
        self.starts = starts[:-1]
        self.owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        self.magnitude = float(np.maximum.reduceat(np.abs(values), self.starts).sum())

    def _net(self, price: float) -> tuple[Floats, Floats]:
        """v_j(s) − p · s for every size, and the largest of each job."""
        net = self.values - price * self.sizes
        return net, np.asarray(np.maximum.reduceat(net, self.starts))

    def _choice(self, price: float) -> Ints:
        """Index of each job's best size at a price, the smallest one among equals."""
        net, best = self._net(price)
        places = np.where(net >= best[self.owner], np.arange(len(net)), len(net))
        return np.asarray(np.minimum.reduceat(places, self.starts))

    def price(self) -> float:
        """By bisection, about the lowest price at which the pool suffices for the jobs: the bound is tight there."""
        low, gains = 0.0, self.values - self.values[self.starts][self.owner]
        high = float(np.max(gains / np.maximum(self.sizes, 1)))
        if int(self.sizes[self._choice(low)].sum()) <= self.pool:
            return low
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if int(self.sizes[self._choice(middle)].sum()) <= self.pool:
                high = middle
            else:
                low = middle
        return high

    def bounds(self, price: float) -> Floats:
        """For each size, an upper bound on the objective of every solution that contains it."""
        net, best = self._net(price)
        return price * self.pool + float(best.sum()) - (best[self.owner] - net)

    def feasible_value(self, price: float) -> float:
        """Objective of a feasible solution: each job's best size at the price, then greedy improvements that fit."""
        choice = self._choice(price)
        for _ in range(_SWITCHES):
            rest = self.pool - int(self.sizes[choice].sum())
            present = choice[self.owner]
            fits = self.sizes - self.sizes[present] <= rest
            gains = np.where(fits, self.values - self.values[present], 0.0)
            best = int(np.argmax(gains))
            if gains[best] <= 0:
                break
            choice[self.owner[best]] = best
        return float(self.values[choice].sum())
