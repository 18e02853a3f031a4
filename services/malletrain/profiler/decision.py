"""What a plan would give a job, for one curve of it or another: does it matter which of them is right?

In the long run, rescale costs apart, the best division of a pool of P nodes between a job with curve O and all others
is the n that maximises w·O(n) + V(P - n), with V(m) what the others make of m nodes (a knapsack,
solved once for all m).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rest_values(others: Sequence[Sequence[float]], pool: int) -> Floats:
    """V: what the other jobs together make of 0, 1, 2.. nodes.

    Args:
        others: Of each job, what a second at 0, 1, 2.. nodes is worth; minus infinity where it may not run so.
        pool: Number of nodes.

    Returns:
        One value per number of nodes, 0 to `pool`; never falling, since nodes may stay idle.
    """
    best = np.zeros(pool + 1)
    for values in others:
        grown = best.copy()
        for nodes, value in enumerate(values[: pool + 1]):
            if value > -np.inf:
                np.maximum(grown[nodes:], best[: pool + 1 - nodes] + value, out=grown[nodes:])
        best = grown
    return np.maximum.accumulate(best)


def best_size(worth: Callable[[int], float], sizes: Sequence[int], rest: Floats) -> int:
    """How many nodes the job gets where `worth` holds: one of `sizes`, or 0; the smaller of equals.

    Args:
        worth: What a second at a scale in nodes is worth.
        sizes: Permitted scales.
        rest: V, as of `rest_values`.
    """
    pool = len(rest) - 1
    best, most = 0, float(rest[pool])
    for size in sizes:
        if size <= pool and (value := worth(size) + float(rest[pool - size])) > most * (1 + 1e-9):
            best, most = size, value
    return best
