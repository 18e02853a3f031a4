"""Which of several best choices: the same problem gives the same plan.

In this order: the fewest jobs changed, the fewest nodes used, the earlier job the larger. Totals tie when they differ
by less than a tolerance, so that rounding does not decide.

The search walks the graph of best choices, whose states are the nodes that the jobs so far can leave to the others.
Jobs alike can tie in very many ways, so that a level has at most `_MOST_STATES` states; a pool of fewer nodes never
has more, and there the order holds exactly. Above, the plan is still one of the best, and still the same every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.worth import Worth

_MOST_STATES = 1024

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def unique_choice(worths: Sequence[Worth], tables: Sequence[Floats], pool: int, tie: float) -> list[int] | None:
    """The best counts where no job has a tie; None where one has.

    Args:
        worths: The jobs' choices, earlier jobs first.
        tables: g_k by capacity in nodes, for every job k and, as the last one, for no job; each ends where more nodes
            add nothing.
        pool: Number of nodes.
        tie: Totals closer than this tie.
    """
    counts = []
    capacity = pool
    for worth, table, after in zip(worths, tables, tables[1:], strict=False):
        reachable = int(np.searchsorted(worth.sizes, capacity, side="right"))
        rest = np.minimum(capacity - worth.sizes[:reachable], len(after) - 1)
        values = worth.values[:reachable] + after[rest]
        optimal = np.flatnonzero(values >= table[min(capacity, len(table) - 1)] - tie)
        if len(optimal) != 1:
            return None
        counts.append(int(worth.sizes[optimal[0]]))
        capacity -= counts[-1]
    return counts


@dataclass(frozen=True)
class _Level:
    """One job's best choices.

    Attributes:
        states: Capacities in nodes with which the earlier jobs can leave this one, ascending.
        sizes: The job's sizes in nodes, descending.
        own: What each size costs in the order of ties: a change outweighs any number of nodes.
        best: Which sizes are best choices (states by sizes).
        most: Nodes that the jobs after this one can hold.
    """

    states: Ints
    sizes: Ints
    own: Ints
    best: Flags
    most: int

    def left(self) -> Ints:
        """Capacity left to the jobs after this one (states by sizes); below 0 where a size does not fit."""
        return np.asarray(np.minimum(self.states[:, None] - self.sizes, self.most), dtype=np.int64)


def fewest_changes(worths: Sequence[Worth], tables: Sequence[Floats], pool: int, tie: float) -> list[int]:
    """Of the best counts, those that come first in the order of ties; arguments as for `unique_choice`."""
    levels = _best_choices(worths, tables, pool, tie)
    costs = np.zeros(1, dtype=np.int64)  # by capacity left to the jobs after a level
    picks: list[Ints] = []
    for level in reversed(levels):
        after = costs[np.clip(level.left(), 0, len(costs) - 1)]
        total = np.where(level.best, level.own + after, np.iinfo(np.int64).max)
        pick = np.argmin(total, axis=1)  # the first among equals, which is the largest size
        costs = np.zeros(int(level.states[-1]) + 1, dtype=np.int64)
        costs[level.states] = total[np.arange(len(pick)), pick]
        picks.append(pick)
    picks.reverse()
    return _follow(levels, picks)


def _follow(levels: Sequence[_Level], picks: Sequence[Ints]) -> list[int]:
    counts = []
    capacity = int(levels[0].states[0])
    for level, pick in zip(levels, picks, strict=True):
        count = int(level.sizes[pick[int(np.searchsorted(level.states, capacity))]])
        counts.append(count)
        capacity = min(capacity - count, level.most)
    return counts


def _best_choices(worths: Sequence[Worth], tables: Sequence[Floats], pool: int, tie: float) -> list[_Level]:
    levels: list[_Level] = []
    # Not the tables' ends: a job may stay at a size larger than worth its nodes.
    most = sum(int(worth.sizes[-1]) for worth in worths)
    states = np.asarray([min(pool, most)], dtype=np.int64)
    change = (pool + 1) * (len(worths) + 1)
    for worth, table, after in zip(worths, tables, tables[1:], strict=False):
        sizes = worth.sizes[::-1]
        most -= int(sizes[0])
        left = np.minimum(states[:, None] - sizes, most)
        value = worth.values[::-1] + after[np.clip(left, 0, len(after) - 1)]
        best = (left >= 0) & (value >= table[np.minimum(states, len(table) - 1)][:, None] - tie)
        best, following = _within_bounds(worth, best, left)
        levels.append(_Level(states, sizes, (sizes != worth.current) * change + sizes, best, most))
        states = following
    return levels


def _within_bounds(worth: Worth, best: Flags, left: Ints) -> tuple[Flags, Ints]:
    """The best choices and the states that they lead to; only some choices where there would be too many states."""
    states = _states_after(best, left)
    if len(states) > _MOST_STATES:
        best = _stay_least_most(worth, best)
        states = _states_after(best, left)
    if len(states) > _MOST_STATES:
        best = _one_each(worth, best)
        states = _states_after(best, left)
    return best, states


def _states_after(best: Flags, left: Ints) -> Ints:
    reached = np.zeros(int(left.max()) + 1, dtype=np.bool_)
    reached[left[best]] = True
    return np.flatnonzero(reached)


def _stay_least_most(worth: Worth, best: Flags) -> Flags:
    """Of each state's choices no change, the smallest, and the largest that is worth its nodes."""
    rows = np.arange(len(best))
    worthwhile = _worthwhile(worth, best)
    kept: Flags = best & (worth.sizes[::-1] == worth.current)
    kept[rows, np.argmax(worthwhile, axis=1)] = True
    kept[rows, best.shape[1] - 1 - np.argmax(best[:, ::-1], axis=1)] = True
    return kept


def _one_each(worth: Worth, best: Flags) -> Flags:
    """Of each state's choices one: a running job's present size, else the largest that is worth its nodes."""
    rows = np.arange(len(best))
    pick = np.argmax(_worthwhile(worth, best), axis=1)
    if worth.current > 0:
        stays = best & (worth.sizes[::-1] == worth.current)
        pick = np.where(stays.any(axis=1), np.argmax(stays, axis=1), pick)
    kept = np.zeros_like(best)
    kept[rows, pick] = True
    return kept


def _worthwhile(worth: Worth, best: Flags) -> Flags:
    """Choices worth more than every smaller size: each state has one, for less is never worse for the others."""
    useful = np.zeros(len(worth.sizes), dtype=np.bool_)
    useful[worth.useful()] = True
    return np.asarray(best & useful[::-1], dtype=np.bool_)
