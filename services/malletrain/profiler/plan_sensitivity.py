"""The scale that a plan would give a job for a given curve. It tells whether an uncertain curve matters for the plan.

Without rescale costs, the best division of P nodes between a job with curve O and weight w and all other jobs is the n
that maximises w·O(n) + V(P - n). V(m) is the most that the others achieve on m nodes (a knapsack problem, solved once
for all m).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rest_values(others: Sequence[Sequence[float]], pool: int) -> Floats:
    """V: the most that the other jobs achieve together on 0, 1, 2.. nodes.

    Args:
        others: For each job its weighted rate on 0, 1, 2.. nodes; minus infinity at scales that are not permitted.
        pool: Number of nodes P.

    Returns:
        Array of length P + 1, never falling, since nodes may stay idle.
    """
    best = np.zeros(pool + 1)
    for values in others:
        grown = best.copy()
        for nodes, value in enumerate(values[: pool + 1]):
            if value > -np.inf:
                np.maximum(grown[nodes:], best[: pool + 1 - nodes] + value, out=grown[nodes:])
        best = grown
    return np.maximum.accumulate(best)


def best_scale(value: Callable[[int], float], scales: Sequence[int], rest: Floats) -> int:
    """The scale that maximises the sum of a job's value and that of all others: one of `scales` or 0.

    Of equally good scales the smallest is taken.

    Args:
        value: The job's weighted rate at a scale in nodes.
        scales: Permitted scales in nodes.
        rest: V, as returned by `rest_values`.
    """
    pool = len(rest) - 1
    best, most = 0, float(rest[pool])
    for scale in scales:
        if scale <= pool and (total := value(scale) + float(rest[pool - scale])) > most * (1 + 1e-9):
            best, most = scale, total
    return best
