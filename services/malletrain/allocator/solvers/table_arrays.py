"""The loops of the dynamic programs as operations on whole arrays, for where Numba is not.

Each function has the arguments of the compiled one and returns the same. What is best is found for many capacities at
once: rows are capacities, columns sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MAX_CELLS = 1_000_000
"""Entries of the largest array of capacities x sizes."""


def value_tables(starts: Ints, sizes: Ints, values: Floats, min_per_job: Ints, pool: int) -> Floats:
    """`knapsack.value_tables`."""
    jobs = len(starts) - 1
    tables = np.zeros((jobs + 1, pool + 1))
    total = np.empty(pool + 1)
    for job in range(jobs - 1, -1, -1):
        table, after, first = tables[job], tables[job + 1], starts[job]
        table[min_per_job[job] :] = after[min_per_job[job] :] + values[first]
        for size, value in zip(
            sizes[first + 1 : starts[job + 1]].tolist(), values[first + 1 : starts[job + 1]].tolist(), strict=True
        ):
            lowest = max(size, int(min_per_job[job]))
            if lowest <= pool:
                own = np.add(after[lowest - size : pool + 1 - size], value, out=total[lowest:])
                np.maximum(table[lowest:], own, out=table[lowest:])
    return tables


def reachable(starts: Ints, sizes: Ints, values: Floats, tables: Floats, pool: int, tie: float) -> Flags:
    """`knapsack.reachable`."""
    jobs = len(starts) - 1
    reached = np.zeros((jobs + 1, pool + 1), np.bool_)
    reached[0, pool] = True
    for job in range(jobs):
        own = slice(starts[job], starts[job + 1])
        for capacities in _blocks(np.flatnonzero(reached[job]), own):
            remaining, total = _totals(capacities, sizes[own], values[own], tables[job + 1])
            reached[job + 1, remaining[total >= (tables[job, capacities] - tie)[:, None]]] = True
    return reached


def first_choices(
    starts: Ints, sizes: Ints, values: Floats, currents: Ints, tables: Floats, reached: Flags, pool: int, tie: float
) -> Ints:
    """`knapsack.first_choices`."""
    jobs = len(starts) - 1
    change = (pool + 1) * (jobs + 1)
    picks, costs = np.zeros((jobs, pool + 1), np.int64), np.zeros((2, pool + 1), np.int64)
    for job in range(jobs - 1, -1, -1):
        own = slice(starts[job], starts[job + 1])
        charges = sizes[own] + change * (sizes[own] != currents[job])
        for capacities in _blocks(np.flatnonzero(reached[job]), own):
            remaining, total = _totals(capacities, sizes[own], values[own], tables[job + 1])
            best = total >= (tables[job, capacities] - tie)[:, None]
            places, cost = _cheapest(best, costs[(job + 1) % 2][remaining] + charges)
            picks[job, capacities] = starts[job] + places
            costs[job % 2, capacities] = cost
    return picks


def cost_tables(
    starts: Ints, sizes: Ints, values: Floats, costs: Ints, pool: int, tie: float
) -> tuple[Floats, Ints, Ints]:
    """`owner_knapsack.cost_tables`."""
    items = len(starts) - 1
    best, cost = np.zeros(pool + 1), np.zeros(pool + 1, np.int64)
    picks = np.zeros((items, pool + 1), np.int64)
    for item in range(items - 1, -1, -1):
        own = slice(starts[item], starts[item + 1])
        own_best, own_cost = np.empty(pool + 1), np.zeros(pool + 1, np.int64)
        for capacities in _blocks(np.arange(pool + 1), own):
            remaining, total = _totals(capacities, sizes[own], values[own], best)
            most = np.fmax.reduce(total, axis=1)
            places, cheapest = _cheapest(total >= (most - tie)[:, None], cost[remaining] + costs[own])
            own_best[capacities], own_cost[capacities] = most, cheapest
            picks[item, capacities] = starts[item] + places
        best, cost = own_best, own_cost
    return best, cost, picks


def values_of_scales(
    starts: Ints,
    sizes: Ints,
    rates: Floats,
    held_starts: Ints,
    held_rates: Floats,
    up_seconds: Floats,
    down_seconds: Floats,
    boot_seconds: Floats,
    currents: Ints,
    forward_seconds: float,
    max_start_seconds: float,
    paper: bool,
    max_change: int,
    measured_stalls: Floats,
) -> Floats:
    """`choice_table.values_of_scales`."""
    counts = np.diff(starts)
    current = np.repeat(currents, counts)
    old = np.repeat(held_rates[held_starts[:-1] + np.minimum(currents, np.diff(held_starts) - 1)], counts)
    grown = sizes > current
    stall = np.where(sizes < current, np.repeat(down_seconds, counts), 0.0)
    stall = np.where(grown, np.repeat(up_seconds, counts), stall)
    if len(measured_stalls):
        stall = np.where(np.isnan(measured_stalls), stall, measured_stalls)
    values: Floats = forward_seconds * rates - stall * (old if paper else rates)
    if not paper:
        boot = np.repeat(boot_seconds, counts)
        values = np.where(grown & (boot > 0), values - boot * (rates - old), values)
        at_present = np.add.reduceat((sizes == current) & (current > 0), starts[:-1]) if len(counts) else counts
        starting = grown & ~np.repeat(at_present > 0, counts)
        start = forward_seconds * rates - np.minimum(stall + boot, max_start_seconds) * rates
        values = np.where(starting, start, values)
    return np.where((sizes > 0) & (np.abs(sizes - current) > max_change), -np.inf, values)


def _blocks(capacities: Ints, own: slice) -> Iterator[Ints]:
    """The capacities in blocks that bound the arrays over them and the sizes of a job."""
    rows = max(1, MAX_CELLS // (own.stop - own.start))
    return (capacities[begin : begin + rows] for begin in range(0, len(capacities), rows))


def _totals(capacities: Ints, sizes: Ints, values: Floats, after: Floats) -> tuple[Ints, Floats]:
    """For each capacity and size what is left, and the best total (not a number: the size does not fit)."""
    remaining = capacities[:, None] - sizes
    fits, remaining = remaining >= 0, np.maximum(remaining, 0)
    return remaining, np.where(fits, values + after[remaining], np.nan)


def _cheapest(able: Flags, cost: Ints) -> tuple[Ints, Ints]:
    """For each capacity the column of the least cost, of equal ones the last, and that cost."""
    cost = np.where(able, cost, np.iinfo(np.int64).max)
    places = cost.shape[1] - 1 - np.argmin(cost[:, ::-1], axis=1)
    return places, cost[np.arange(len(cost)), places]
