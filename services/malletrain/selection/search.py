"""Exact search, compiled: all selections that fit, depth first, the front job first.

What does not fit is visited, but never extended, since more jobs only need more. A branch whose bound can't beat what
was found is left out. Selections are met with their first jobs chosen before they are met without, so the first of
equal ones is the one with the jobs at the front of the window.
"""

from __future__ import annotations

import numpy as np

from malletrain.runtime.jit import jit
from malletrain.selection import levels
from malletrain.selection.arrays import Ints


@jit("b1(i8[:, ::1], i8[::1], i8[::1], i8)")
def fits(jobs: Ints, limits: Ints, used: Ints, job: int) -> bool:
    """Whether a job fits beside what is used: `used` as in `add`."""
    small, large = used[0], used[1]
    late_small, late_large, late_gb = used[3], used[4], used[5]
    nodes, gb = jobs[0, job], jobs[1, job]
    if jobs[2, job]:
        large += nodes
    else:
        small += nodes
    if jobs[3, job]:
        late_gb += gb
        if jobs[2, job]:
            late_large += nodes
        else:
            late_small += nodes
    if large > limits[1] or small + large > limits[0] + limits[1]:
        return False
    if used[2] + gb > limits[2] or used[6] + 1 > limits[3] or late_gb > limits[6]:
        return False
    if limits[4]:
        return bool(late_large + min(late_small, max(0, small - limits[0])) <= limits[5])
    return bool(late_small + late_large <= limits[5])


@jit("void(i8[:, ::1], i8[::1], i8, i8)")
def add(jobs: Ints, used: Ints, job: int, sign: int) -> None:
    """Add a job to what is used (sign 1) or take it away (−1).

    `used`: nodes of jobs for the small and for the large class, burst buffer; the same of late jobs; number of jobs.
    """
    nodes, gb, large, late = sign * jobs[0, job], sign * jobs[1, job], jobs[2, job], jobs[3, job]
    used[large] += nodes
    used[2] += gb
    if late:
        used[3 + large] += nodes
        used[5] += gb
    used[6] += sign


@jit("i8[:, ::1](i8[:, ::1])")
def _most_to_come(values: Ints) -> Ints:
    """For each row and position, the most that the jobs from there on can add."""
    rows, count = values.shape
    most = np.zeros((rows, count + 1), np.int64)
    for row in range(rows):
        for job in range(count - 1, -1, -1):
            most[row, job] = most[row, job + 1] + max(0, values[row, job])
    return most


@jit("i8[::1](i8[:, ::1], i8[::1], i8[:, ::1], i8[::1], i8, i8, i8)", otherwise=levels.best_selection)
def best_selection(
    jobs: Ints, limits: Ints, values: Ints, spill_costs: Ints, cap: int, score_above: int, most_visits: int
) -> Ints:
    """The selection with the largest value, of equal ones the largest second value, then the front of the window.

    Args:
        jobs: As in `ProblemArrays`.
        limits: As in `ProblemArrays`.
        values: Shape (3, jobs): what a job adds to the value, to the second value and to a score.
        spill_costs: Shape (3,): what a node that spills takes from each of them.
        cap: A value that no selection exceeds.
        score_above: Only selections with a score above this count.
        most_visits: The search is given up after so many selections.

    Returns:
        Visited selections (−1: given up), whether a selection was found, then 0 or 1 for each job.
    """
    count = jobs.shape[1]
    to_come = _most_to_come(values)
    answer = np.zeros(count + 2, np.int64)
    following, chosen = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    used, now = np.zeros(7, np.int64), np.zeros(3, np.int64)
    depth, visits = 0, 1
    best, second = 0, 0
    while True:
        job = following[depth]
        spill = max(0, used[0] - limits[0])
        value = now[0] - spill * spill_costs[0]
        other = now[1] - spill * spill_costs[1]
        score = now[2] - spill * spill_costs[2]
        bound = max(value, min(cap, value + to_come[0, job]))
        hopeless = score + to_come[2, job] <= score_above or (
            answer[1] == 1 and (bound < best or (bound == best and other + to_come[1, job] <= second))
        )
        if job < count and not hopeless:
            following[depth] = job + 1
            visits += 1
            if visits > most_visits:
                answer[0] = -1
                return answer
            if fits(jobs, limits, used, job):
                add(jobs, used, job, 1)
                now += values[:, job]
                chosen[depth] = job
                depth += 1
                following[depth] = job + 1
            continue
        if not hopeless:
            best, second = value, other
            answer[1:] = 0
            answer[1] = 1
            for index in range(depth):
                answer[2 + chosen[index]] = 1
        if depth == 0:
            break
        depth -= 1
        add(jobs, used, chosen[depth], -1)
        now -= values[:, chosen[depth]]
    answer[0] = visits
    return answer


@jit("b1(i8[:, ::1], i8, i8[::1], i8[::1])")
def _is_covered(front: Ints, size: int, now: Ints, more: Ints) -> bool:
    """Whether one of the found points is at least as good as now + more in all objectives."""
    for row in range(size - 1, -1, -1):
        if (
            front[row, 0] >= now[0] + more[0]
            and front[row, 1] >= now[1] + more[1]
            and front[row, 2] >= now[2] + more[2]
            and front[row, 3] >= now[3] + more[3]
        ):
            return True
    return False


@jit("i8(i8[:, ::1], i8, i8[::1])")
def _without_dominated(front: Ints, size: int, now: Ints) -> int:
    """Remove the points that `now` dominates; the number that is left."""
    kept = 0
    for row in range(size):
        if not (
            now[0] >= front[row, 0] and now[1] >= front[row, 1] and now[2] >= front[row, 2] and now[3] >= front[row, 3]
        ):
            if kept < row:
                front[kept] = front[row]
            kept += 1
    return kept


@jit("i8[:, ::1](i8[:, ::1], i8[::1], i8[:, ::1], i8, i8, i8)", otherwise=levels.pareto_front)
def pareto_front(jobs: Ints, limits: Ints, objectives: Ints, spill_gb: int, min_nodes: int, most_visits: int) -> Ints:
    """The distinct points that no other one dominates, each with the selection at the front of the window.

    Args:
        jobs: As in `ProblemArrays`.
        limits: As in `ProblemArrays`.
        objectives: As in `ProblemArrays`.
        spill_gb: As in `ProblemArrays`.
        min_nodes: Only points with at least so many nodes.
        most_visits: The search is given up after so many selections; the answer then has no rows.

    Returns:
        Shape (points, 4 + jobs): f1 … f4, then 0 or 1 for each job.
    """
    count = jobs.shape[1]
    to_come = np.ascontiguousarray(_most_to_come(objectives).T)
    front, size = np.zeros((64, 4 + count), np.int64), 0
    following, chosen = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    used, now, point = np.zeros(7, np.int64), np.zeros(4, np.int64), np.zeros(4, np.int64)
    depth, visits = 0, 1
    while True:
        job = following[depth]
        point[:] = now
        point[3] -= spill_gb * max(0, used[0] - limits[0])
        hopeless = point[0] + to_come[job, 0] < min_nodes or _is_covered(front, size, point, to_come[job])
        if job < count and not hopeless:
            following[depth] = job + 1
            visits += 1
            if visits > most_visits:
                return np.zeros((0, 4 + count), np.int64)
            if fits(jobs, limits, used, job):
                add(jobs, used, job, 1)
                now += objectives[:, job]
                chosen[depth] = job
                depth += 1
                following[depth] = job + 1
            continue
        if not hopeless:
            size = _without_dominated(front, size, point)
            if size == len(front):
                more = np.zeros((2 * size, 4 + count), np.int64)
                more[:size] = front
                front = more
            front[size, :4] = point
            front[size, 4:] = 0
            for index in range(depth):
                front[size, 4 + chosen[index]] = 1
            size += 1
        if depth == 0:
            break
        depth -= 1
        add(jobs, used, chosen[depth], -1)
        now -= objectives[:, chosen[depth]]
    return front[:size].copy()
