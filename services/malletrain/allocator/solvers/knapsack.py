"""Exact multiple-choice knapsack: choose one size (scale in nodes) per job so that the sum fits into the pool. Pure.

Nodes of a pool are interchangeable, so this has the same optimum as the node-level model. Let g_k(c) be the best value
of jobs k, k+1, … on c nodes:

    g_k(c) = max over sizes s of job k of  v_k(s) + g_{k+1}(c - s)

Ties are broken so that the same problem always gives the same plan: fewest jobs changed, then fewest nodes used, then
the larger size for the earlier job. Totals tie when they differ by less than a tolerance; rounding does not decide.
A second pass finds the first optimum in this order. It only visits (job, capacity) states that an optimum can reach.

The sizes of all jobs lie in one flat array; job k has the indices starts[k] to starts[k + 1] - 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.solvers import table_arrays
from malletrain.runtime.jit import jit

TIE = 1e-12
"""Two totals tie when they differ by less than this fraction of the largest total."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@jit("i8[::1](i8[::1], i8[::1], i8)")
def min_capacities(starts: Ints, sizes: Ints, pool: int) -> Ints:
    """Smallest capacity that can be left for each job: the pool less the largest sizes of the jobs before it, or 0.

    Shape (jobs + 1,); the last entry is what can be left when every job has chosen.
    """
    capacities = np.empty(len(starts), np.int64)
    capacities[0] = pool
    for job in range(len(starts) - 1):
        capacities[job + 1] = max(0, capacities[job] - sizes[starts[job + 1] - 1])
    return capacities


@jit("f8[:, ::1](i8[::1], i8[::1], f8[::1], i8[::1], i8)", otherwise=table_arrays.value_tables)
def value_tables(starts: Ints, sizes: Ints, values: Floats, min_per_job: Ints, pool: int) -> Floats:
    """g_k(c) for every job k and capacity c; the last row, for no jobs, is 0.

    Shape (jobs + 1, pool + 1). Entries of row k below min_per_job[k] are never reached and not set.
    """
    jobs = len(starts) - 1
    tables = np.empty((jobs + 1, pool + 1))
    tables[jobs, :] = 0.0
    for job in range(jobs - 1, -1, -1):
        table = tables[job]
        after = tables[job + 1]
        first = starts[job]
        for capacity in range(min_per_job[job], pool + 1):
            table[capacity] = after[capacity] + values[first]
        for place in range(first + 1, starts[job + 1]):
            size, value = sizes[place], values[place]
            lowest = max(size, min_per_job[job])
            # Slices from 0 and an unsigned count let the compiler vectorise this loop: about five times as fast.
            target, source = table[lowest:], after[max(0, lowest - size) :]
            for step in range(np.uint64(max(0, pool + 1 - lowest))):
                total = source[step] + value
                target[step] = total if total > target[step] else target[step]
    return tables


def best_values(starts: Ints, sizes: Ints, values: Floats, pool: int) -> Floats:
    """g_k(c) for every job k and every capacity c from 0 to `pool`; the last row, for no jobs, is 0.

    Arguments as for `best_places`. Time O(sizes of all jobs × pool).

    Returns:
        Shape (jobs + 1, pool + 1); rows ascend.
    """
    return value_tables(starts, sizes, values, np.zeros(len(starts), np.int64), pool)


@jit("f8(f8[:, ::1], i8[::1], i8, f8)")
def _tolerance(tables: Floats, min_per_job: Ints, pool: int, share: float) -> float:
    """Largest difference at which two totals tie. Rows of the tables ascend, so their ends are their extremes."""
    largest = 0.0
    for job in range(len(min_per_job)):
        for capacity in (min_per_job[job], pool):
            if np.isfinite(tables[job, capacity]):
                largest = max(largest, abs(tables[job, capacity]))
    return share * largest


@jit("b1[:, ::1](i8[::1], i8[::1], f8[::1], f8[:, ::1], i8, f8)", otherwise=table_arrays.reachable)
def reachable(starts: Ints, sizes: Ints, values: Floats, tables: Floats, pool: int, tie: float) -> Flags:
    """Whether an optimum can leave capacity c for job k and those after it. Shape (jobs + 1, pool + 1)."""
    jobs = len(starts) - 1
    reached = np.zeros((jobs + 1, pool + 1), np.bool_)
    reached[0, pool] = True
    for job in range(jobs):
        for capacity in range(pool + 1):
            if not reached[job, capacity]:
                continue
            enough = tables[job, capacity] - tie
            for place in range(starts[job], starts[job + 1]):
                remaining = capacity - sizes[place]
                if remaining >= 0 and values[place] + tables[job + 1, remaining] >= enough:
                    reached[job + 1, remaining] = True
    return reached


@jit(
    "i8[:, ::1](i8[::1], i8[::1], f8[::1], i8[::1], f8[:, ::1], b1[:, ::1], i8, f8)",
    otherwise=table_arrays.first_choices,
)
def first_choices(
    starts: Ints,
    sizes: Ints,
    values: Floats,
    currents: Ints,
    tables: Floats,
    reached: Flags,
    pool: int,
    tie: float,
) -> Ints:
    """Index of each job's size in the first optimum by the order of ties, for every capacity that can be reached.

    Shape (jobs, pool + 1); entries that can't be reached are not set.
    """
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
                remaining = capacity - size
                if remaining < 0 or values[place] + tables[job + 1, remaining] < enough:
                    continue
                cost = after[remaining] + size
                if size != currents[job]:
                    cost += change
                if best < 0 or cost < best:
                    best = cost
                    picks[job, capacity] = place
            own[capacity] = best
    return picks


@jit("i8[::1](i8[::1], i8[::1], f8[::1], i8[::1], i8, f8)")
def best_places(starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int, share: float) -> Ints:
    """Index of each job's size in the optimum.

    Time O(sizes of all jobs × pool), memory O(jobs × pool).

    Args:
        starts: Index of each job's first size, and the number of all sizes; shape (jobs + 1,).
        sizes: Permitted sizes in nodes, for each job ascending from 0; shape (sizes of all jobs,).
        values: Value of each size, same shape.
        currents: Present size of each job in nodes, permitted or not; shape (jobs,).
        pool: Number of nodes, at least 0.
        share: Two totals tie when they differ by less than this fraction of the largest total.

    Returns:
        Indices into `sizes`, shape (jobs,).
    """
    jobs = len(starts) - 1
    usable = 0
    for job in range(jobs):
        usable += sizes[starts[job + 1] - 1]
    pool = min(pool, usable)
    min_per_job = min_capacities(starts, sizes, pool)
    tables = value_tables(starts, sizes, values, min_per_job, pool)
    tie = _tolerance(tables, min_per_job, pool, share)
    reached = reachable(starts, sizes, values, tables, pool, tie)
    picks = first_choices(starts, sizes, values, currents, tables, reached, pool, tie)
    chosen = np.empty(jobs, np.int64)
    capacity = pool
    for job in range(jobs):
        chosen[job] = picks[job, capacity]
        capacity -= sizes[chosen[job]]
    return chosen
