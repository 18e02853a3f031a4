"""One entry for all formulations: choose, solve, fall back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from malletrain.allocator.counts_model import counts_model, read_counts
from malletrain.allocator.dynamic_program import best_counts
from malletrain.allocator.integer_model import Floats, IntegerModel
from malletrain.allocator.node_model import node_model, read_node_counts
from malletrain.allocator.placement import place
from malletrain.allocator.problem import Allocation, AllocationProblem, Formulation
from malletrain.allocator.solver_process import SolverProcess
from malletrain.allocator.validation import validate
from malletrain.allocator.worth import Worth, job_worth, objective_of

DEFAULT_SECONDS = 5.0
_LARGEST_DP = 20_000_000_000
"""Most elementary steps (jobs x nodes x sizes) of a dynamic programme that serves as a fallback: some 20 s."""

ReadSolution = Callable[[Floats], list[int]]


def solve(
    problem: AllocationProblem,
    formulation: Formulation = Formulation.AUTO,
    seconds: float = DEFAULT_SECONDS,
    process: SolverProcess | None = None,
) -> Allocation:
    """Solve a problem.

    `auto` takes the dynamic programme: here only the pool constrains, and it is exact. When HiGHS does not prove an
    optimum in time, the answer is that of the dynamic programme; if that is too large, HiGHS's best solution so far; if
    there is none, the present map.

    Args:
        problem: The problem.
        formulation: Which model to use.
        seconds: Wall-clock limit of HiGHS.
        process: The solver's process to use; by default one is started for this solve.

    Raises:
        InvalidInputError: the problem can't be used; names the field.
    """
    started = time.perf_counter()
    validate(problem)
    worths = [job_worth(job, problem) for job in problem.jobs]
    if formulation in (Formulation.AUTO, Formulation.DP):
        counts = best_counts(worths, len(problem.nodes))
        return _allocation(problem, worths, counts, ("OPTIMAL", "dp", ""), started)
    return _solve_integer(problem, worths, formulation, seconds, process, started)


def _solve_integer(
    problem: AllocationProblem,
    worths: Sequence[Worth],
    formulation: Formulation,
    seconds: float,
    process: SolverProcess | None,
    started: float,
) -> Allocation:
    model, read = _model(problem, worths, formulation)
    own = process or SolverProcess()
    try:
        answer = own.solve(model, seconds)
    finally:
        if process is None:
            own.close()
    name = f"highs-{formulation.value}"
    if answer.solution is not None and answer.proven:
        return _allocation(problem, worths, read(answer.solution), ("OPTIMAL", name, ""), started)
    reason = f"{name}: {answer.problem}"
    if _steps(worths, len(problem.nodes)) <= _LARGEST_DP:
        counts = best_counts(worths, len(problem.nodes))
        return _allocation(problem, worths, counts, ("OPTIMAL", "dp", reason), started)
    if answer.solution is not None:
        return _allocation(problem, worths, read(answer.solution), ("FEASIBLE", name, reason), started)
    return _allocation(problem, worths, present_counts(worths), ("UNCHANGED", "present", reason), started)


def _model(
    problem: AllocationProblem, worths: Sequence[Worth], formulation: Formulation
) -> tuple[IntegerModel, ReadSolution]:
    if formulation is Formulation.COUNTS:
        return counts_model(worths, len(problem.nodes)), lambda solution: read_counts(worths, solution)
    nodes = node_model(problem)
    return nodes.model, lambda solution: read_node_counts(nodes, solution)


def _steps(worths: Sequence[Worth], pool: int) -> int:
    return sum(len(worth.sizes) for worth in worths) * (pool + 1)


def present_counts(worths: Sequence[Worth]) -> list[int]:
    """The present sizes; a job whose size is no longer permitted goes to 0."""
    return [worth.current if worth.current in worth.sizes else 0 for worth in worths]


def _allocation(
    problem: AllocationProblem,
    worths: Sequence[Worth],
    counts: Sequence[int],
    outcome: tuple[str, str, str],
    started: float,
) -> Allocation:
    status, solver, reason = outcome
    assignments = place(problem, counts)
    objective = objective_of(worths, counts)
    return Allocation(objective, status, solver, time.perf_counter() - started, assignments, reason)
