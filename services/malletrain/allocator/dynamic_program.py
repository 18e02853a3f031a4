"""Exact dynamic programming on counts.

Where nodes are interchangeable the node-level model equals a multiple-choice knapsack: one size per job, the sizes'
sum within the pool. With g_k(c) the best value of jobs k.. on c nodes,

    g_k(c) = max over sizes s of job k of  v_k(s) + g_{k+1}(c - s)

Ties, in this order: the fewest jobs changed, the fewest nodes used, the earlier job the larger. Two totals tie when
they differ by less than 1e-12 of the largest value at stake, so that rounding does not decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.worth import Worth

_TIE = 1e-12
_BLOCK = 1024
"""Columns per step: what is added and compared stays in the processor's cache."""
_DENSE = 4
"""With fewer than one in so many sizes permitted, size by size is faster."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def best_counts(worths: Sequence[Worth], pool: int) -> list[int]:
    """The best number of nodes for each job.

    Args:
        worths: The jobs' choices, earlier jobs first.
        pool: Number of nodes, at least 0.

    Returns:
        One count per job; their sum is at most `pool`.
    """
    tables = _value_tables(worths, pool)
    stake = float(sum(np.abs(worth.values).max() for worth in worths)) if worths else 0.0
    unique = _unique_path(worths, tables, pool, _TIE * stake)
    return unique if unique is not None else _break_ties(worths, tables, pool, _TIE * stake)


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


def _unique_path(worths: Sequence[Worth], tables: Sequence[Floats], pool: int, tie: float) -> list[int] | None:
    """The optimal counts where no level has a tie; None at the first that has."""
    counts = []
    capacity = pool
    for level, worth in enumerate(worths):
        table, after = tables[level], tables[level + 1]
        reachable = int(np.searchsorted(worth.sizes, capacity, side="right"))
        rest = np.minimum(capacity - worth.sizes[:reachable], len(after) - 1)
        values = worth.values[:reachable] + after[rest]
        optimal = np.flatnonzero(values >= table[min(capacity, len(table) - 1)] - tie)
        if len(optimal) != 1:
            return None
        counts.append(int(worth.sizes[optimal[0]]))
        capacity -= counts[-1]
    return counts


def _break_ties(worths: Sequence[Worth], tables: Sequence[Floats], pool: int, tie: float) -> list[int]:
    """Walk the graph of optimal choices and take the path that changes least."""
    states, masks = _optimal_choices(worths, tables, pool, tie)
    costs = np.zeros(len(states[-1]), dtype=np.int64)
    chosen: list[Ints] = []
    for worth, capacities, after, mask in zip(
        reversed(worths), reversed(states[:-1]), reversed(states[1:]), reversed(masks), strict=True
    ):
        # One change outweighs any number of nodes; among equals, argmin takes the first: sizes run downwards.
        own = (worth.sizes != worth.current) * (pool + 1) * (len(worths) + 1) + worth.sizes
        where = np.searchsorted(after, np.maximum(capacities[:, None] - worth.sizes[None, ::-1], 0))
        total = np.where(mask, own[None, ::-1] + costs[np.minimum(where, len(costs) - 1)], np.iinfo(np.int64).max)
        pick = np.argmin(total, axis=1)
        costs = total[np.arange(len(capacities)), pick]
        chosen.append(worth.sizes[::-1][pick])
    chosen.reverse()
    return _read_path(chosen, states, pool)


def _optimal_choices(
    worths: Sequence[Worth], tables: Sequence[Floats], pool: int, tie: float
) -> tuple[list[Ints], list[NDArray[np.bool_]]]:
    """Per level the capacities that optimal choices can leave, and which sizes (downwards) are optimal at each."""
    states: list[Ints] = [np.asarray([pool], dtype=np.int64)]
    masks: list[NDArray[np.bool_]] = []
    for level, worth in enumerate(worths):
        capacities, table, after = states[-1], tables[level], tables[level + 1]
        rest = capacities[:, None] - worth.sizes[None, ::-1]
        best = table[np.minimum(capacities, len(table) - 1)]
        value = worth.values[None, ::-1] + after[np.clip(rest, 0, len(after) - 1)]
        mask = (rest >= 0) & (value >= best[:, None] - tie)
        masks.append(mask)
        states.append(np.unique(rest[mask]))
    return states, masks


def _read_path(chosen: Sequence[Ints], states: Sequence[Ints], pool: int) -> list[int]:
    counts = []
    capacity = pool
    for picks, capacities in zip(chosen, states, strict=False):
        count = int(picks[int(np.searchsorted(capacities, capacity))])
        counts.append(count)
        capacity -= count
    return counts
