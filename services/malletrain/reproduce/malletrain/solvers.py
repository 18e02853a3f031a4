"""Solve times while other allocators solve on the same machine (MalleTrain, Fig. 8)."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel
from malletrain.allocator.problem.objective import scale_values
from malletrain.allocator.solvers.milp import MilpModel
from malletrain.allocator.solvers.milp_counts import counts_model
from malletrain.simulator.replay.presets import preset_jobs

ALLOCATORS = (1, 2, 4, 8, 16, 40)
_JOBS, _NODES, _LIMIT_S = 20, 200, 60.0


class Solver(Protocol):
    """Interface of `allocator.solver_process.SolverProcess`."""

    def solve(self, model: MilpModel, seconds: float) -> object:
        """Solve a model within a time limit in seconds."""

    def close(self) -> None:
        """End the process."""


def concurrent_times(
    make: Callable[[], Solver], allocators: Sequence[int], repeats: int, seed: int
) -> list[tuple[int, float]]:
    """Mean solve time by number of allocators that solve at once.

    Args:
        make: Makes a solver.
        allocators: Numbers of allocators.
        repeats: Solves of each allocator.
        seed: Seed of the problems' present nodes.

    Returns:
        Pairs of a number of allocators and milliseconds.
    """
    models = [_model(random.Random(seed + index)) for index in range(repeats)]
    processes = [make() for _ in range(max(allocators))]

    def work(process: Solver) -> float:
        began = time.perf_counter()
        for model in models:
            process.solve(model, _LIMIT_S)
        return (time.perf_counter() - began) / repeats

    # One thread pool for all: the process of a solver ends with the thread that started it.
    with ThreadPoolExecutor(len(processes)) as threads:
        try:
            list(threads.map(work, processes))
            return [(k, 1000.0 * statistics.fmean(threads.map(work, processes[:k]))) for k in allocators]
        finally:
            for process in processes:
                process.close()


def _model(rng: random.Random) -> MilpModel:
    names = tuple(f"n{index}" for index in range(_NODES))
    free = list(names)
    jobs = []
    for job in preset_jobs("imagenet", _JOBS):
        held = tuple(free.pop() for _ in range(min(len(free), rng.randint(0, 2 * _NODES // _JOBS), job.max_nodes)))
        jobs.append(replace(job.demand(), current_nodes=held))
    problem = AllocationProblem(names, 120.0, tuple(jobs), CostModel.PAPER)
    return counts_model([scale_values(job, problem) for job in problem.jobs], _NODES)
