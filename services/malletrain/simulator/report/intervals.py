"""Intervals by drawing whole weeks or days again (block bootstrap: Künsch 1989, Efron 1979). Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from malletrain.simulator.replay.slices import DAY_S, WEEK_S, Values, whole_edges

MIN_WEEKS, MIN_DAYS = 8, 7
_DRAWS = 2000
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Estimate:
    """A figure.

    Attributes:
        value: The figure.
        low: Lower end of its 95 % interval; None: nothing can be said.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Estimate:
        """The same in another unit; `factor` is at least 0."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Estimate(self.value * factor, low, high)


@dataclass(frozen=True)
class Blocks:
    """Parts of a time that are drawn again: nodes and users behave alike from one to the next.

    Attributes:
        edges: Begins of the blocks in seconds, and the end of the last one; shape (blocks + 1,).
        word: What one is: `week` or `day`.
    """

    edges: Values
    word: str

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.edges) - 1


def blocks_of(duration_s: float) -> Blocks | None:
    """Whole weeks of a time, of which there must be eight; else whole days, of which there must be seven; else None."""
    if duration_s >= MIN_WEEKS * WEEK_S:
        return Blocks(whole_edges(duration_s, WEEK_S), "week")
    return Blocks(whole_edges(duration_s, DAY_S), "day") if duration_s >= MIN_DAYS * DAY_S else None


def ratio_of(value: float, parts: ArrayLike, wholes: ArrayLike, rng: np.random.Generator) -> Estimate:
    """A ratio of two sums with its 95 % interval, by drawing blocks with replacement.

    Args:
        value: The ratio of all, also of what belongs to no block.
        parts: What each block adds to the part, shape (blocks,).
        wholes: What it adds to the whole, shape (blocks,).
        rng: Draws the blocks.
    """
    above, below = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
    drawn = rng.integers(0, above.size, (_DRAWS, above.size))
    sums = below[drawn].sum(axis=1)
    found = np.divide(above[drawn].sum(axis=1), sums, out=np.zeros(_DRAWS), where=sums > 0)
    low, high = np.quantile(found, _TAILS)
    return Estimate(value, float(low), float(high))
