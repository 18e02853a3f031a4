"""The exact choice of one size per job where some owners have a limit on the nodes of all their jobs together. Pure.

The limits are first left out. If that optimum keeps them, it is the optimum. Otherwise the choice has two levels: for
each owner and each number of nodes the best sizes of the owner's jobs, and then the best number of nodes of each owner.
Ties are broken as in `knapsack`; what is left of them goes to the owner whose first job is the earliest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.allocator.solvers import table_arrays
from malletrain.allocator.solvers.knapsack import TIE, Floats, Ints
from malletrain.runtime.jit import jit


@dataclass(frozen=True)
class OwnerGroup:
    """The jobs of an owner with a limit.

    Attributes:
        owner: Name of the owner.
        jobs: Indices of its jobs, ascending.
        limit: Most nodes of all these jobs together, at least 0.
    """

    owner: str
    jobs: tuple[int, ...]
    limit: int

    def keeps(self, counts: Sequence[int] | Ints) -> bool:
        """Whether the nodes of each job of the problem keep the limit."""
        return sum(int(counts[job]) for job in self.jobs) <= self.limit


def owner_groups(owners: Sequence[str], limits: Mapping[str, int]) -> tuple[OwnerGroup, ...]:
    """The owners who have both jobs and a limit, in the order of their first jobs.

    Args:
        owners: Owner of each job.
        limits: Most nodes by owner; an owner who is missing has no limit.
    """
    if not limits:
        return ()
    by_owner: dict[str, list[int]] = {}
    for job, owner in enumerate(owners):
        if owner in limits:
            by_owner.setdefault(owner, []).append(job)
    return tuple(OwnerGroup(owner, tuple(jobs), limits[owner]) for owner, jobs in by_owner.items())


@dataclass(frozen=True)
class _Part:
    """The jobs of one owner, or of all without a limit: their tables, and what each number of nodes is worth."""

    jobs: tuple[int, ...]
    firsts: Ints
    starts: Ints
    sizes: Ints
    picks: Ints
    nodes: Ints
    values: Floats
    costs: Ints

    def write_places(self, nodes: int, places: Ints) -> None:
        """Write the index of each job's size when the owner has so many nodes."""
        for index, job in enumerate(self.jobs):
            place = self.picks[index, nodes]
            places[job] = self.firsts[index] + place - self.starts[index]
            nodes -= self.sizes[place]


def best_places_within(
    starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int, groups: Sequence[OwnerGroup]
) -> Ints:
    """Index of each job's size in the optimum that keeps the limits.

    Time O(sizes of all jobs x largest limit + owners x largest limit x pool).

    Args:
        starts: Index of each job's first size, and the number of all sizes; shape (jobs + 1,).
        sizes: Permitted sizes in nodes, for each job ascending from 0.
        values: Value of each size, same shape.
        currents: Present size of each job in nodes, shape (jobs,).
        pool: Number of nodes, at least 0.
        groups: Owners with a limit; no job is in two of them.

    Returns:
        Indices into `sizes`, shape (jobs,).
    """
    jobs = len(starts) - 1
    # A change outweighs any number of nodes.
    changes = np.where(sizes == np.repeat(currents, np.diff(starts)), 0, (pool + 1) * (jobs + 1))
    best = np.maximum.reduceat(np.where(np.isfinite(values), np.abs(values), 0.0), starts[:-1])
    tie = TIE * float(best.sum())
    limited = {job for group in groups for job in group.jobs}
    free = tuple(job for job in range(jobs) if job not in limited)
    members = [(group.jobs, group.limit) for group in groups] + ([(free, pool)] if free else [])
    parts = [
        _part(owned, min(limit, pool), starts, sizes, values, changes + sizes, tie) for owned, limit in sorted(members)
    ]
    owner_starts = np.cumsum([0, *(len(part.nodes) for part in parts)])
    nodes = np.concatenate([part.nodes for part in parts])
    _, _, picks = cost_tables(
        owner_starts,
        nodes,
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.costs for part in parts]),
        pool,
        tie,
    )
    places = np.empty(jobs, np.int64)
    remaining = pool
    for index, part in enumerate(parts):
        part_nodes = int(nodes[picks[index, remaining]])
        part.write_places(part_nodes, places)
        remaining -= part_nodes
    return places


def _part(
    jobs: tuple[int, ...], limit: int, starts: Ints, sizes: Ints, values: Floats, costs: Ints, tie: float
) -> _Part:
    """The tables of some jobs that may have at most `limit` nodes together."""
    ranges = [np.arange(starts[job], starts[job + 1]) for job in jobs]
    own = np.concatenate(ranges)
    inner = np.cumsum([0, *(len(entries) for entries in ranges)])
    most = min(limit, sum(int(sizes[entries[-1]]) for entries in ranges))
    worth, cost, picks = cost_tables(inner, sizes[own], values[own], costs[own], most, tie)
    # Numbers of nodes that are worth no more than one node less are left out.
    differs = (np.diff(worth) != 0) | (np.diff(cost) != 0)
    nodes = np.concatenate(([0], 1 + np.flatnonzero(differs))).astype(np.int64)
    return _Part(jobs, starts[list(jobs)], inner, sizes[own], picks, nodes, worth[nodes], cost[nodes])


@jit(
    "Tuple((f8[::1], i8[::1], i8[:, ::1]))(i8[::1], i8[::1], f8[::1], i8[::1], i8, f8)",
    otherwise=table_arrays.cost_tables,
)
def cost_tables(
    starts: Ints, sizes: Ints, values: Floats, costs: Ints, pool: int, tie: float
) -> tuple[Floats, Ints, Ints]:
    """For every capacity the best value of all items, the least cost of ties, and the choice for each item.

    Args:
        starts: Index of each item's first size, and the number of all sizes; shape (items + 1,).
        sizes: Sizes, for each item ascending from 0.
        values: Value of each size, same shape.
        costs: Cost of each size, by which ties are broken, same shape.
        pool: Largest capacity.
        tie: Largest difference at which two totals tie.

    Returns:
        Values and costs, shape (pool + 1,), and indices into `sizes`, shape (items, pool + 1).
    """
    items = len(starts) - 1
    best, cost = np.zeros(pool + 1), np.zeros(pool + 1, np.int64)
    picks = np.zeros((items, pool + 1), np.int64)
    for item in range(items - 1, -1, -1):
        own, own_cost = np.empty(pool + 1), np.zeros(pool + 1, np.int64)
        for capacity in range(pool + 1):
            most = -np.inf
            for place in range(starts[item], starts[item + 1]):
                remaining = capacity - sizes[place]
                if remaining >= 0:
                    most = max(most, values[place] + best[remaining])
            chosen = -1
            for place in range(starts[item + 1] - 1, starts[item] - 1, -1):
                remaining = capacity - sizes[place]
                if remaining < 0 or values[place] + best[remaining] < most - tie:
                    continue
                if chosen < 0 or costs[place] + cost[remaining] < own_cost[capacity]:
                    chosen = place
                    own_cost[capacity] = costs[place] + cost[remaining]
            own[capacity] = most
            picks[item, capacity] = chosen
        best, cost = own, own_cost
    return best, cost, picks
