"""The exact search over arrays, for where Numba is not: all selections that fit, one level after the other.

Level k holds the selections of the last k jobs of the window that fit and may still become an answer. The next level
has each of them with the job before, if that fits, and then each without it. So a level is in the order of the window:
of equal selections the first is the one with the jobs at the front. A level with too many selections ends the search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.selection.arrays import Ints

MAX_KEPT = 1_000_000
"""Selections of a level beyond which the search is given up: some hundred MiB."""
_COMPARED = 64
"""Points of the front with which each selection is compared."""
Flags = NDArray[np.bool_]


def fitting(limits: Ints, used: Ints) -> Flags:
    """`search.fits` for many selections: `used` as in `search.add`, shape (7, selections), with the new job."""
    small, large, gb, late_small, late_large, late_gb, count = used
    room = (large <= limits[1]) & (small + large <= limits[0] + limits[1]) & (gb <= limits[2])
    if limits[4]:
        late = late_large + np.minimum(late_small, np.maximum(0, small - limits[0]))
    else:
        late = late_small + late_large
    fits: Flags = room & (count <= limits[3]) & (late_gb <= limits[6]) & (late <= limits[5])
    return fits


def uses_of(jobs: Ints) -> Ints:
    """What each job adds to what is used; shape (7, jobs)."""
    nodes, gb, large, late = jobs
    small = nodes * (1 - large)
    return np.stack((small, nodes * large, gb, small * late, nodes * large * late, gb * late, np.ones_like(nodes)))


@dataclass(frozen=True)
class _Level:
    """Selections, the front of the window first.

    Attributes:
        used: What they use, as in `search.add`; shape (7, selections).
        now: What their jobs add up to, without spilling; shape (rows, selections).
        words: Bit k is the k-th job from the end; shape (selections,).
    """

    used: Ints
    now: Ints
    words: NDArray[np.uint64]

    @classmethod
    def empty_selection(cls, rows: int) -> _Level:
        return cls(np.zeros((7, 1), np.int64), np.zeros((rows, 1), np.int64), np.zeros(1, np.uint64))

    def only(self, where: Flags) -> _Level:
        return _Level(self.used[:, where], self.now[:, where], self.words[where])

    def with_job(self, limits: Ints, use: Ints, values: Ints, bit: int) -> _Level:
        """The selections to which a job can be added, with it."""
        used = self.used + use[:, None]
        fits = fitting(limits, used)
        words = self.words[fits] | np.uint64(1 << bit)
        return _Level(used[:, fits], self.now[:, fits] + values[:, None], words)

    def before(self, other: _Level) -> _Level:
        return _Level(
            np.concatenate((self.used, other.used), axis=1),
            np.concatenate((self.now, other.now), axis=1),
            np.concatenate((self.words, other.words)),
        )

    def points(self, limits: Ints, spill_costs: Ints) -> Ints:
        """What the selections are worth; shape (rows, selections)."""
        spill = np.maximum(0, self.used[0] - limits[0])
        points: Ints = self.now - spill_costs[:, None] * spill
        return points


def best_selection(
    jobs: Ints, limits: Ints, values: Ints, spill_costs: Ints, cap: int, score_above: int, most_visits: int
) -> Ints:
    """`search.best_selection`; it visits other selections."""
    count = jobs.shape[1]
    uses, undecided = uses_of(jobs), _most_before(values)
    level, visits = _Level.empty_selection(3), 1
    best = (0, 0) if score_above < 0 else None
    answer = np.zeros(count + 2, np.int64)
    for job in range(count, -1, -1):
        points = level.points(limits, spill_costs)
        to_come = undecided[:, job, None]
        able = points[2] > score_above
        best_index = _best_of(points, able)
        if best_index is not None:
            key = (int(points[0, best_index]), int(points[1, best_index]))
            best = key if best is None else max(best, key)
        if job == 0:
            break
        bounds = points + to_come
        keep = bounds[2] > score_above
        if best is not None:
            bound = np.maximum(points[0], np.minimum(cap, bounds[0]))
            keep &= (bound > best[0]) | ((bound == best[0]) & (bounds[1] >= best[1]))
        level = level.only(keep)
        more = level.with_job(limits, uses[:, job - 1], values[:, job - 1], count - job)
        level = more.before(level)
        visits += len(level.words)
        if visits > most_visits or len(level.words) > MAX_KEPT:
            answer[0] = -1
            return answer
    answer[0] = visits
    if best_index is not None:
        answer[1] = 1
        answer[2:] = flags_of(level.words[best_index : best_index + 1], count)[0]
    return answer


def pareto_front(jobs: Ints, limits: Ints, objectives: Ints, spill_gb: int, min_nodes: int, most_visits: int) -> Ints:
    """`search.pareto_front`; it visits other selections."""
    count = jobs.shape[1]
    uses, undecided = uses_of(jobs), _most_before(objectives)
    spill_costs = np.array([0, 0, 0, spill_gb], dtype=np.int64)
    level, visits = _Level.empty_selection(4), 1
    front, words = np.zeros((4, 0), np.int64), np.zeros(0, np.uint64)
    for job in range(count, -1, -1):
        points = level.points(limits, spill_costs)
        front, words = _without_dominated(np.concatenate((front, points), axis=1), np.concatenate((words, level.words)))
        if job == 0:
            break
        bounds = points + undecided[:, job, None]
        level = level.only((bounds[0] >= min_nodes) & ~_beaten(bounds, front))
        more = level.with_job(limits, uses[:, job - 1], objectives[:, job - 1], count - job)
        level = more.before(level)
        visits += len(level.words)
        if visits > most_visits or len(level.words) > MAX_KEPT:
            return np.zeros((0, 4 + count), np.int64)
    rows: Ints = np.concatenate((front.T, flags_of(words, count)), axis=1)
    return rows[rows[:, 0] >= min_nodes]


def flags_of(words: NDArray[np.uint64], count: int) -> Ints:
    """0 or 1 for each job; shape (selections, jobs)."""
    shifts = np.arange(count - 1, -1, -1, dtype=np.uint64)
    flags: Ints = ((words[:, None] >> shifts) & np.uint64(1)).astype(np.int64)
    return flags


def _most_before(values: Ints) -> Ints:
    """For each row and position, the most that the jobs before it can add; shape (rows, jobs + 1)."""
    rows = len(values)
    return np.concatenate((np.zeros((rows, 1), np.int64), np.cumsum(np.maximum(0, values), axis=1)), axis=1)


def _best_of(points: Ints, able: Flags) -> int | None:
    """The first of the selections with the largest value and, of these, the largest second value."""
    where = np.flatnonzero(able)
    for row in (0, 1):
        if not len(where):
            return None
        where = where[points[row, where] == points[row, where].max()]
    return int(where[0])


def _beaten(bounds: Ints, front: Ints) -> Flags:
    """Whether a point of the front, or of a part of a long one, dominates what a selection can become."""
    beaten = np.zeros(bounds.shape[1], np.bool_)
    for point in front[:, :: 1 + front.shape[1] // _COMPARED].T[:, :, None]:
        beaten |= (point >= bounds).all(axis=0) & (point > bounds).any(axis=0)
    return beaten


def _without_dominated(points: Ints, words: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.uint64]]:
    """The distinct points that no other one dominates, each with the largest word."""
    order = np.lexsort((words, *points[::-1]))[::-1]
    points, words = points[:, order], words[order]
    places = []
    left = np.arange(len(words))
    while len(left):
        # The largest of those that are left: none of them dominates it.
        first = left[0]
        places.append(first)
        left = left[(points[:, left] > points[:, first, None]).any(axis=0)]
    return points[:, places], words[places]
