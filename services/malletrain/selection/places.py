"""Exact choice among jobs that take one place each and some burst buffer. Uncompiled, and within milliseconds.

Only the largest burst buffer of each number of jobs can be in the Pareto set. So the window is halved, the selections
of each half are sorted by number of jobs and burst buffer, and for each selection of the first half the best one of the
second half is looked up (Horowitz and Sahni, J. ACM 21, 1974).
"""

from __future__ import annotations

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.arrays import Ints
from malletrain.selection.problem import SelectionProblem
from malletrain.selection.rule import choose, default_trade_off


def select_for_places(problem: SelectionProblem) -> tuple[int, ...]:
    """The jobs that BBSched starts where every job takes one node and there are no SSDs; see `select` for others.

    Args:
        problem: The problem; its nodes are places.

    Returns:
        Positions in the window, ascending.

    Raises:
        InvalidInputError: a job takes more than one node, or something is reserved.
    """
    if problem.machine.has_ssd or problem.reserved is not None or any(job.nodes != 1 for job in problem.jobs):
        raise InvalidInputError("problem", "jobs of one node each, without SSDs and reservation")
    factor = default_trade_off(problem.machine)
    most = problem.free.nodes if problem.places is None else min(problem.free.nodes, problem.places)
    points, selections = _best_by_count(problem, most)
    return tuple(np.flatnonzero(selections[choose(points, selections, problem.machine, factor)]).tolist())


def _best_by_count(problem: SelectionProblem, max_jobs: int) -> tuple[Ints, Ints]:
    """For each number of jobs that fits, the selection with the most burst buffer; of equal ones the front.

    Returns:
        f1 … f4 of each, shape (selections, 4), and 0 or 1 for each job, shape (selections, jobs).
    """
    amounts, free = [job.burst_buffer_gb for job in problem.jobs], problem.free.burst_buffer_gb
    middle = len(amounts) // 2
    front, back = _half(amounts[:middle], free), _half(amounts[middle:], free)
    bits = len(amounts) - middle
    best: dict[int, tuple[int, int]] = {}
    for first, (front_gb, front_masks) in enumerate(front):
        for second, (back_gb, back_masks) in enumerate(back):
            last_fitting = np.searchsorted(back_gb, free - front_gb, side="right") - 1
            fits = last_fitting >= 0
            if first + second > max_jobs or not fits.any():
                continue
            totals = front_gb[fits] + back_gb[last_fitting[fits]]
            masks = (front_masks[fits] << bits) | back_masks[last_fitting[fits]]
            largest = int(totals.max())
            candidate = (largest, int(masks[totals == largest].max()))
            best[first + second] = max(best.get(first + second, candidate), candidate)
    points = np.array([(count, gb, 0, 0) for count, (gb, _) in best.items()], dtype=np.int64)
    selections = [[mask >> position & 1 for position in reversed(range(len(amounts)))] for _, mask in best.values()]
    return points, np.array(selections, dtype=np.int64).reshape(len(best), len(amounts))


def _half(amounts: list[int], free_gb: int) -> list[tuple[Ints, Ints]]:
    """For each number of jobs, what its selections take in GB, ascending and each once, and which jobs these are.

    The first job is the highest bit of a mask; of selections that take the same, the highest mask stays.
    """
    totals, counts = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for amount in amounts:
        totals = np.stack([totals, totals + amount], axis=1).reshape(-1)
        counts = np.stack([counts, counts + 1], axis=1).reshape(-1)
    halves = []
    for count in range(len(amounts) + 1):
        masks = np.flatnonzero((counts == count) & (totals <= free_gb))
        masks = masks[np.lexsort((masks, totals[masks]))]
        gb = totals[masks]
        last = np.append(gb[1:] != gb[:-1], True) if len(gb) else np.zeros(0, dtype=bool)
        halves.append((gb[last], masks[last]))
    return halves
