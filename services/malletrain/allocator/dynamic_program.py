"""Exact dynamic programming on counts.

Where nodes are interchangeable the node-level model equals a multiple-choice knapsack: one size per job, the sizes'
sum within the pool. With g_k(c) the best value of jobs k.. on c nodes,

    g_k(c) = max over sizes s of job k of  v_k(s) + g_{k+1}(c - s)

Which of several best choices is taken: see `malletrain.allocator.ties`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.allocator.ties import Floats, Ints, fewest_changes, unique_choice
from malletrain.allocator.worth import Worth

_TIE = 1e-12
_BLOCK = 1024
"""Columns per step: what is added and compared stays in the processor's cache."""
_DENSE = 4
"""With fewer than one in so many sizes permitted, size by size is faster."""


def best_counts(worths: Sequence[Worth], pool: int) -> list[int]:
    """The best number of nodes for each job.

    Args:
        worths: The jobs' choices, earlier jobs first.
        pool: Number of nodes, at least 0.

    Returns:
        One count per job; their sum is at most `pool`.
    """
    tables = _value_tables(worths, pool)
    # Tables ascend, so that their ends are their extremes: rounding is relative to the largest sum there is.
    tie = _TIE * max(max(abs(float(table[0])), abs(float(table[-1]))) for table in tables)
    unique = unique_choice(worths, tables, pool, tie)
    return unique if unique is not None else fewest_changes(worths, tables, pool, tie)


def _value_tables(worths: Sequence[Worth], pool: int) -> list[Floats]:
    """g_k for every k, each only as long as its jobs can use nodes."""
    tables: list[Floats] = [np.zeros(1)]
    tallest = max((int(worth.sizes[-1]) for worth in worths), default=0) + 1
    scratch = np.empty(tallest * min(_BLOCK, pool + 1))
    for worth in reversed(worths):
        after = tables[-1]
        useful = worth.useful()
        largest = int(worth.sizes[useful[-1]])
        length = min(pool, len(after) - 1 + largest) + 1
        # Entry i of the padded table is g_{k+1}(i - largest): no nodes fewer than 0, nothing gained beyond the end.
        padded = np.full(largest + length, after[-1])
        padded[:largest] = -np.inf
        padded[largest : largest + len(after)] = after[:length]
        tables.append(_best_of_sizes(padded, length, worth.sizes[useful], worth.values[useful], scratch))
    tables.reverse()
    return tables


def _best_of_sizes(padded: Floats, length: int, sizes: Ints, values: Floats, scratch: Floats) -> Floats:
    """max over sizes s of v(s) + g(c - s), for c from 0 to length - 1."""
    largest = int(sizes[-1])
    best: Floats
    if len(sizes) * _DENSE < largest:
        best = padded[largest - sizes[0] : largest - sizes[0] + length] + values[0]
        for size, value in zip(sizes[1:].tolist(), values[1:].tolist(), strict=True):
            np.maximum(best, padded[largest - size : largest - size + length] + value, out=best)
        return best
    dense = np.full((largest + 1, 1), -np.inf)
    dense[largest - sizes, 0] = values
    # Row i is the padded table from entry i on: a view, so that all sizes are added and compared at once.
    step = padded.itemsize
    shifted: Floats = np.ndarray((largest + 1, length), np.float64, padded, strides=(step, step))
    best = np.empty(length)
    for start in range(0, length, _BLOCK):
        stop = min(start + _BLOCK, length)
        part = scratch[: (largest + 1) * (stop - start)].reshape(largest + 1, stop - start)
        np.add(shifted[:, start:stop], dense, out=part)
        np.maximum.reduce(part, axis=0, out=best[start:stop])
    return best
