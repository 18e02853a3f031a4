"""Multiple-choice knapsack, exactly: one size for each job, the sizes' sum within the pool.

Where nodes are interchangeable the node-level model equals this. With g_k(c) the best value of jobs k.. on c nodes,

    g_k(c) = max over sizes s of job k of  v_k(s) + g_{k+1}(c - s)

Which of several best choices: the same problem gives the same plan. In this order: the fewest jobs changed, the fewest
nodes used, the earlier job the larger. Totals tie when they differ by less than a tolerance, so that rounding does not
decide. The search for that walks the graph of best choices, whose states are the nodes left to the jobs that follow.

All jobs' sizes lie one after the other in flat arrays; job k has those from starts[k] to starts[k + 1].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.compiled import compiled

TIE = 1e-12
"""Totals that differ by less than this share of the largest total tie."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@compiled("i8[::1](i8[::1], i8[::1], i8)")
def _least_capacities(starts: Ints, sizes: Ints, pool: int) -> Ints:
    """With how few nodes each job, and at last nobody, can be left: what the jobs before can't hold stays."""
    least = np.empty(len(starts), np.int64)
    least[0] = pool
    for job in range(len(starts) - 1):
        least[job + 1] = max(0, least[job] - sizes[starts[job + 1] - 1])
    return least


@compiled("f8[:, ::1](i8[::1], i8[::1], f8[::1], i8[::1], i8)")
def _value_tables(starts: Ints, sizes: Ints, values: Floats, least: Ints, pool: int) -> Floats:
    """g_k(c) for every job k and, as the last row, for no job; known from least[k] nodes on."""
    jobs = len(starts) - 1
    tables = np.empty((jobs + 1, pool + 1))
    tables[jobs, :] = 0.0
    for job in range(jobs - 1, -1, -1):
        table = tables[job]
        after = tables[job + 1]
        first = starts[job]
        for capacity in range(least[job], pool + 1):
            table[capacity] = after[capacity] + values[first]
        for place in range(first + 1, starts[job + 1]):
            size, value = sizes[place], values[place]
            lowest = max(size, least[job])
            # Both start at 0, and the count has no sign: then these are vector operations, some five times as fast.
            target, source = table[lowest:], after[max(0, lowest - size) :]
            for step in range(np.uint64(max(0, pool + 1 - lowest))):
                total = source[step] + value
                target[step] = total if total > target[step] else target[step]
    return tables


@compiled("f8(f8[:, ::1], i8[::1], i8, f8)")
def _tolerance(tables: Floats, least: Ints, pool: int, share: float) -> float:
    """Tables ascend, so that their ends are their extremes."""
    largest = 0.0
    for job in range(len(least)):
        for capacity in (least[job], pool):
            if np.isfinite(tables[job, capacity]):
                largest = max(largest, abs(tables[job, capacity]))
    return share * largest


@compiled("b1[:, ::1](i8[::1], i8[::1], f8[::1], f8[:, ::1], i8, f8)")
def _reachable(starts: Ints, sizes: Ints, values: Floats, tables: Floats, pool: int, tie: float) -> Flags:
    """With which capacities the best choices of the jobs before can leave each job."""
    jobs = len(starts) - 1
    reached = np.zeros((jobs + 1, pool + 1), np.bool_)
    reached[0, pool] = True
    for job in range(jobs):
        for capacity in range(pool + 1):
            if not reached[job, capacity]:
                continue
            enough = tables[job, capacity] - tie
            for place in range(starts[job], starts[job + 1]):
                left = capacity - sizes[place]
                if left >= 0 and values[place] + tables[job + 1, left] >= enough:
                    reached[job + 1, left] = True
    return reached


@compiled("i8[:, ::1](i8[::1], i8[::1], f8[::1], i8[::1], f8[:, ::1], b1[:, ::1], i8, f8)")
def _first_choices(
    starts: Ints,
    sizes: Ints,
    values: Floats,
    currents: Ints,
    tables: Floats,
    reached: Flags,
    pool: int,
    tie: float,
) -> Ints:
    """Where each job's choice stands at each reachable capacity: the first in the order of ties."""
    jobs = len(starts) - 1
    change = (pool + 1) * (jobs + 1)  # outweighs any number of nodes
    picks = np.empty((jobs, pool + 1), np.int64)
    costs = np.zeros((2, pool + 1), np.int64)
    for job in range(jobs - 1, -1, -1):
        own, after = costs[job % 2], costs[(job + 1) % 2]
        for capacity in range(pool + 1):
            if not reached[job, capacity]:
                continue
            enough = tables[job, capacity] - tie
            best = -1
            for place in range(starts[job + 1] - 1, starts[job] - 1, -1):
                size = sizes[place]
                left = capacity - size
                if left < 0 or values[place] + tables[job + 1, left] < enough:
                    continue
                cost = after[left] + size
                if size != currents[job]:
                    cost += change
                if best < 0 or cost < best:
                    best = cost
                    picks[job, capacity] = place
            own[capacity] = best
    return picks


@compiled("i8[::1](i8[::1], i8[::1], f8[::1], i8[::1], i8, f8)")
def best_places(starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int, share: float) -> Ints:
    """Where each job's best size stands in the flat arrays.

    O(sizes of all jobs × pool), in memory O(jobs × pool).

    Args:
        starts: Where each job's sizes start, and where the last one's end; one entry more than there are jobs.
        sizes: Permitted sizes in nodes: 0 first for each job, then ascending.
        values: What each is worth.
        currents: The jobs' present sizes in nodes, not necessarily permitted ones.
        pool: Number of nodes, at least 0.
        share: Totals that differ by less than this share of the largest one tie.
    """
    jobs = len(starts) - 1
    usable = 0
    for job in range(jobs):
        usable += sizes[starts[job + 1] - 1]
    pool = min(pool, usable)
    least = _least_capacities(starts, sizes, pool)
    tables = _value_tables(starts, sizes, values, least, pool)
    tie = _tolerance(tables, least, pool, share)
    reached = _reachable(starts, sizes, values, tables, pool, tie)
    picks = _first_choices(starts, sizes, values, currents, tables, reached, pool, tie)
    chosen = np.empty(jobs, np.int64)
    capacity = pool
    for job in range(jobs):
        chosen[job] = picks[job, capacity]
        capacity -= sizes[chosen[job]]
    return chosen
