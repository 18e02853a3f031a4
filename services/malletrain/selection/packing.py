"""Methods that take one job after the other: in order, or the one that fits best (Grandl et al., SIGCOMM 2014)."""

from __future__ import annotations

import numpy as np

from malletrain.selection.arrays import arrays_of, share_units
from malletrain.selection.problem import SelectionProblem
from malletrain.selection.search import add, fits


def in_order(problem: SelectionProblem) -> tuple[int, ...]:
    """The jobs that fit beside those before them."""
    arrays, used, chosen = arrays_of(problem), np.zeros(7, dtype=np.int64), list[int]()
    for index in range(len(problem.jobs)):
        if fits(arrays.jobs, arrays.limits, used, index):
            add(arrays.jobs, used, index, 1)
            chosen.append(index)
    return tuple(chosen)


def pack(problem: SelectionProblem) -> tuple[int, ...]:
    """The jobs that bin packing starts, in the order of the window.

    The alignment of a job is the dot product of what it asks for and what is free, both as shares of the machine. Of
    equal jobs the first is taken.
    """
    arrays, machine = arrays_of(problem), problem.machine
    units = share_units(machine)
    used = np.zeros(7, dtype=np.int64)
    waiting, chosen = list(range(len(problem.jobs))), list[int]()
    while True:
        waiting = [index for index in waiting if fits(arrays.jobs, arrays.limits, used, index)]
        if not waiting:
            return tuple(sorted(chosen))
        small, large, burst_buffer = (int(amount) for amount in used[:3])
        spill = max(0, small - problem.free.small)
        free_small = problem.free.small - small + spill
        free_large = problem.free.large - large - spill
        free_ssd = free_small * machine.small_ssd_gb + free_large * machine.large_ssd_gb
        free = (free_small + free_large, problem.free.burst_buffer_gb - burst_buffer, free_ssd)
        # Python's whole numbers have no limit: products of two shares in 64 bits would overflow.
        weights = [unit * unit * amount for unit, amount in zip(units, free, strict=True)]

        def alignment(index: int, weights: list[int] = weights) -> int:
            job = problem.jobs[index]
            return weights[0] * job.nodes + weights[1] * job.burst_buffer_gb + weights[2] * job.nodes * job.ssd_gb

        best = max(waiting, key=alignment)
        add(arrays.jobs, used, best, 1)
        waiting.remove(best)
        chosen.append(best)
