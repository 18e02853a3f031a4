"""Exact dynamic programming on counts.

Where nodes are interchangeable the node-level model equals a multiple-choice knapsack: one size per job, the sizes'
sum within the pool. With g_k(c) the best value of jobs k.. on c nodes,

    g_k(c) = max over sizes s of job k of  v_k(s) + g_{k+1}(c - s)

Which of several best choices is taken: see `malletrain.allocator.ties`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.allocator.max_plus import Floats, best_of_sizes
from malletrain.allocator.reduction import without_hopeless
from malletrain.allocator.ties import fewest_changes, unique_choice
from malletrain.allocator.worth import Worth

_TIE = 1e-12


def best_counts(worths: Sequence[Worth], pool: int) -> list[int]:
    """The best number of nodes for each job.

    Args:
        worths: The jobs' choices, earlier jobs first.
        pool: Number of nodes, at least 0.

    Returns:
        One count per job; their sum is at most `pool`.
    """
    worths = without_hopeless(worths, pool)
    tables = _value_tables(worths, pool)
    # Tables ascend, so that their ends are their extremes: rounding is relative to the largest sum there is.
    tie = _TIE * max(max(abs(float(table[0])), abs(float(table[-1]))) for table in tables)
    unique = unique_choice(worths, tables, pool, tie)
    return unique if unique is not None else fewest_changes(worths, tables, pool, tie)


def _value_tables(worths: Sequence[Worth], pool: int) -> list[Floats]:
    """g_k for every k, each only as long as its jobs can use nodes."""
    tables: list[Floats] = [np.zeros(1)]
    for worth in reversed(worths):
        useful = worth.useful()
        length = min(pool, len(tables[-1]) - 1 + int(worth.sizes[useful[-1]])) + 1
        tables.append(best_of_sizes(tables[-1], length, worth.sizes[useful], worth.values[useful]))
    tables.reverse()
    return tables
