"""BFTrainer's Fig. 5: solve times."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, Formulation
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.reproduce.exhibits import Exhibit, rounded
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.plots import lines

_NODES = (100, 200, 400, 800)
_JOBS = (5, 10, 20, 30)
_REPEATS = 3
_LIMIT_S = 20.0
_FORMULATIONS = (Formulation.DP, Formulation.COUNTS)


def solve_exhibit(jobs: Sequence[ReplayJob], rng: random.Random) -> Exhibit:
    """Solve times of both production solvers on problems with random present nodes. They differ from run to run."""
    rows = []
    process = SolverProcess()
    try:
        for count in _JOBS:
            for nodes in _NODES:
                problems = [_problem(jobs, count, nodes, rng) for _ in range(_REPEATS)]
                rows.append((count, nodes, *(_median_ms(problems, f, process) for f in _FORMULATIONS)))
    finally:
        process.close()
    series = {
        f"{count} jobs, {label}": (
            [float(row[1]) for row in rows if row[0] == count],
            [float(row[place]) for row in rows if row[0] == count],
        )
        for count in (_JOBS[0], _JOBS[-1])
        for place, label in ((2, "dp"), (3, "HiGHS"))
    }
    return Exhibit(
        "figure-5",
        "Fig. 5: time to solve by number of jobs and nodes",
        ("jobs", "nodes", "dp, ms", "HiGHS on counts, ms"),
        rounded(rows, 3),
        "Published: typically less than a second, with Gurobi on the node-level model. Where only the pool constrains, "
        "counts decide, and a decision takes milliseconds.",
        lines("Fig. 5: time to solve", "nodes", Axis("ms", log=True), series),
        measured=True,
    )


def _median_ms(problems: Sequence[AllocationProblem], formulation: Formulation, process: SolverProcess) -> float:
    answers = [solve(problem, formulation, _LIMIT_S, process) for problem in problems]
    return 1000.0 * statistics.median(answer.solve_seconds for answer in answers)


def _problem(jobs: Sequence[ReplayJob], count: int, nodes: int, rng: random.Random) -> AllocationProblem:
    names = tuple(f"n{index}" for index in range(nodes))
    free = list(names)
    demands = []
    for index in range(count):
        job = jobs[index % len(jobs)]
        share = rng.randint(0, max(1, 2 * nodes // count))
        held = tuple(free.pop() for _ in range(min(len(free), share, job.max_nodes)))
        demands.append(replace(job.demand(), id=f"j{index}", current_nodes=held))
    return AllocationProblem(names, 120.0, tuple(demands), CostModel.PAPER)
