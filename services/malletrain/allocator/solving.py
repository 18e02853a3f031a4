"""One entry for all formulations: choose, solve, fall back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from malletrain.allocator.counts_model import counts_model, read_counts
from malletrain.allocator.dynamic_program import best_counts
from malletrain.allocator.integer_model import Floats, IntegerModel
from malletrain.allocator.menu import Choice, Menu, Terms
from malletrain.allocator.node_model import node_model, read_node_counts
from malletrain.allocator.placement import place
from malletrain.allocator.problem import DEFAULT_SECONDS, Allocation, AllocationProblem, Formulation
from malletrain.allocator.reduction import without_hopeless
from malletrain.allocator.solver_process import Answer, SolverProcess
from malletrain.allocator.validation import validate
from malletrain.allocator.worth import Worth, choices_of, job_worth, objective_of

_LARGEST_DP = 2_000_000_000
"""Most steps (sizes of all jobs x nodes) of a dynamic programme that serves as a fallback: some 3 s."""

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
    there is none, the present map, where jobs of a size that is not permitted wait.

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
    if formulation in (Formulation.AUTO, Formulation.DP):
        choice = choose(problem)
        counts, objective, outcome = choice.counts.tolist(), choice.objective, _Outcome("OPTIMAL", "dp")
    else:
        worths = [job_worth(job, problem) for job in problem.jobs]
        model, read = _model(problem, worths, formulation)
        answer = _answer(model, seconds, process)
        found = _checked(worths, len(problem.nodes), read, answer.solution)
        counts, outcome = _judge(problem, worths, f"highs-{formulation.value}", answer, found)
        objective = objective_of(worths, counts)
    assignments = place(problem, counts)
    elapsed = time.perf_counter() - started
    return Allocation(objective, outcome.status, outcome.solver, elapsed, assignments, outcome.reason)


def choose(problem: AllocationProblem) -> Choice:
    """The best counts of a valid problem, where only the pool constrains."""
    pool = len(problem.nodes)
    menu = Menu.of([choices_of(job, problem.objective_metric, pool) for job in problem.jobs])
    currents = [len(job.current_nodes) for job in problem.jobs]
    return menu.choose(currents, pool, Terms(problem.forward_seconds, problem.cost_model))


@dataclass(frozen=True)
class _Outcome:
    status: str
    solver: str
    reason: str = ""


def _answer(model: IntegerModel, seconds: float, process: SolverProcess | None) -> Answer:
    own = process or SolverProcess()
    try:
        return own.solve(model, seconds)
    finally:
        if process is None:
            own.close()


def _checked(worths: Sequence[Worth], pool: int, read: ReadSolution, solution: Floats | None) -> list[int] | None:
    """The counts of a solution; None where there is none, or HiGHS took more liberty than its tolerance."""
    if solution is None:
        return None
    counts = read(solution)
    permitted = all(count in worth.sizes for worth, count in zip(worths, counts, strict=True))
    return counts if permitted and sum(counts) <= pool else None


def _judge(
    problem: AllocationProblem,
    worths: Sequence[Worth],
    solver: str,
    answer: Answer,
    found: list[int] | None,
) -> tuple[list[int], _Outcome]:
    """HiGHS's answer where it is proven, else the fallbacks in their order."""
    if found is not None and answer.proven:
        return found, _Outcome("OPTIMAL", solver)
    reason = f"{solver}: {answer.problem or 'its solution is not feasible'}"
    pool = len(problem.nodes)
    if sum(len(worth.sizes) for worth in worths) * (pool + 1) <= _LARGEST_DP:
        return best_counts(worths, pool), _Outcome("OPTIMAL", "dp", reason)
    if found is not None:
        return found, _Outcome("FEASIBLE", solver, reason)
    return present_counts(worths), _Outcome("UNCHANGED", "present", reason)


def _model(
    problem: AllocationProblem, worths: Sequence[Worth], formulation: Formulation
) -> tuple[IntegerModel, ReadSolution]:
    if formulation is Formulation.COUNTS:
        slim = without_hopeless(worths, len(problem.nodes))
        return counts_model(slim, len(problem.nodes)), lambda solution: read_counts(slim, solution)
    nodes = node_model(problem)
    return nodes.model, lambda solution: read_node_counts(nodes, solution)


def present_counts(worths: Sequence[Worth]) -> list[int]:
    """The present sizes; a job whose size is no longer permitted goes to 0."""
    return [worth.current if worth.current in worth.sizes else 0 for worth in worths]
