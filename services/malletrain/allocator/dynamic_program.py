"""The best counts of some jobs, by exact dynamic programming (see `knapsack`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.allocator.menu import best_of
from malletrain.allocator.worth import Worth


def best_counts(worths: Sequence[Worth], pool: int) -> list[int]:
    """The best number of nodes for each job.

    Args:
        worths: The jobs' choices, earlier jobs first.
        pool: Number of nodes, at least 0.

    Returns:
        One count per job; their sum is at most `pool`.
    """
    starts = np.cumsum([0, *(len(worth.sizes) for worth in worths)])
    sizes = np.concatenate([np.zeros(0, np.int64), *(worth.sizes for worth in worths)])
    values = np.concatenate([np.zeros(0), *(worth.values for worth in worths)])
    currents = np.asarray([worth.current for worth in worths], dtype=np.int64)
    places = best_of(starts, sizes, values, currents, pool)
    return [int(size) for size in sizes[places]]
