"""Leaves out the sizes that no best answer can contain, before anything is solved.

With a price p per node, the best total is at most  p · pool + Σ_j max_s (v_j(s) − p · s): the Lagrangian bound of the
pool's row. An answer with size s for job j is below it by at least  max_s' (v_j(s') − p · s') − (v_j(s) − p · s). Where
that is less than an answer already at hand, s is in no best answer. Only the pool may constrain the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.worth import Worth

_HALVINGS = 14
_SWITCHES = 10
_MARGIN = 1e-10
"""How far below the answer at hand still counts as equal, relative to the values at stake: far more than a tie."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def without_hopeless(worths: Sequence[Worth], pool: int) -> list[Worth]:
    """The same choices without sizes that are in no best answer; 0 always stays."""
    if not worths:
        return []
    starts = np.cumsum([0, *(len(worth.sizes) for worth in worths)])
    sizes = np.concatenate([worth.sizes for worth in worths])
    kept = hopeful(starts, sizes, np.concatenate([worth.values for worth in worths]), pool)
    slim = []
    for worth, first in zip(worths, starts.tolist(), strict=False):
        chosen = kept[first : first + len(worth.sizes)]
        slim.append(replace(worth, sizes=worth.sizes[chosen], values=worth.values[chosen], costs=worth.costs[chosen]))
    return slim


def hopeful(starts: Ints, sizes: Ints, values: Floats, pool: int) -> Flags:
    """Which sizes a best answer may contain; arguments as for `knapsack.best_places`."""
    market = _Market(starts, sizes, values, pool)
    price = market.price()
    kept: Flags = market.bound_with_each(price) >= market.some_answer(price) - _MARGIN * market.stake
    kept[market.starts] = True
    return kept


class _Market:
    """All sizes of all jobs, one after the other, and what they come to at a price per node."""

    def __init__(self, starts: Ints, sizes: Ints, values: Floats, pool: int) -> None:
        self.pool = pool
        self.sizes = sizes
        self.values = values
        self.starts = starts[:-1]
        self.owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        self.stake = float(np.maximum.reduceat(np.abs(values), self.starts).sum())

    def _net(self, price: float) -> tuple[Floats, Floats]:
        """Value less price of every size, and the best of each job."""
        net = self.values - price * self.sizes
        return net, np.asarray(np.maximum.reduceat(net, self.starts))

    def _choice(self, price: float) -> Ints:
        """Where each job's choice stands: its best size at a price, the smallest among equals."""
        net, best = self._net(price)
        places = np.where(net >= best[self.owner], np.arange(len(net)), len(net))
        return np.asarray(np.minimum.reduceat(places, self.starts))

    def price(self) -> float:
        """About the lowest price at which the jobs want no more than the pool; the bound is near its least there."""
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

    def bound_with_each(self, price: float) -> Floats:
        """For each size, a bound on the total of every answer that contains it."""
        net, best = self._net(price)
        return price * self.pool + float(best.sum()) - (best[self.owner] - net)

    def some_answer(self, price: float) -> float:
        """Value of an answer: what the jobs want at the price, and then the best switches that the rest allows."""
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
