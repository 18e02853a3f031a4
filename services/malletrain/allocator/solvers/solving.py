"""Solves a problem with any formulation, within a time limit and with fallbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.problem.allocation_problem import DEFAULT_SECONDS, Allocation, AllocationProblem, Formulation
from malletrain.allocator.problem.group_table import GroupTable, requires_group
from malletrain.allocator.problem.objective import ScaleValues, objective_of, scale_values
from malletrain.allocator.problem.validation import validate
from malletrain.allocator.solvers.choice_table import best_counts, choose, groups_of, present_counts
from malletrain.allocator.solvers.group_choice import settle_groups
from malletrain.allocator.solvers.kind_flow import KindTable, can_be_placed, placeable_counts
from malletrain.allocator.solvers.milp import Floats, MilpModel
from malletrain.allocator.solvers.milp_counts import counts_model, read_counts, solution_of
from malletrain.allocator.solvers.milp_kinds import kinds_model
from malletrain.allocator.solvers.milp_nodes import node_model, read_node_counts
from malletrain.allocator.solvers.placement import place, place_parts
from malletrain.allocator.solvers.reduction import reduce_sizes
from malletrain.allocator.solvers.required_groups import solve_in_groups
from malletrain.allocator.solvers.solver_process import SolverAnswer, SolverProcess

MAX_DP = 2_000_000_000
"""Most steps (scales of all jobs x nodes) of a dynamic program that serves as a fallback: about 3 s."""

ReadSolution = Callable[[Floats], list[int]]


def solve(
    problem: AllocationProblem,
    formulation: Formulation = Formulation.AUTO,
    seconds: float = DEFAULT_SECONDS,
    process: SolverProcess | None = None,
) -> Allocation:
    """Solve a problem.

    `auto` uses the dynamic program, which is exact where only numbers of nodes constrain the jobs. If HiGHS
    does not prove an optimum in time, the first possible fallback answers: the dynamic program, unless it would take
    seconds or the formulation is `milp`; the better of the best solution that HiGHS found and of the present nodes,
    where jobs whose scale is no longer permitted wait (BFTrainer, §3.6).

    Where not all nodes suit all jobs, each formulation is solved without regard to that first. If there are suitable
    nodes for its optimum, that is the optimum; otherwise HiGHS solves the model by kinds of nodes. Without an answer in
    time, the best answers of: HiGHS's solution; the present nodes; each job in turn gets as many suitable nodes as
    there are, up to what it has in that optimum. Where all nodes of a job must be in one group, or all of each of its
    replicas, it is the same, with what `required_groups` says.

    Args:
        formulation: Which model to use.
        seconds: Wall-clock limit of HiGHS in seconds.
        process: The process in which HiGHS runs; None starts one for this solve.

    Raises:
        InvalidInputError: the problem is not valid; the error names the field.
    """
    started = time.perf_counter()
    validate(problem)
    if formulation in (Formulation.AUTO, Formulation.DP):
        choice = choose(problem)
        counts, objective, outcome = choice.counts.tolist(), choice.objective, SolveOutcome("OPTIMAL", "dp")
    else:
        per_job = [scale_values(job, problem) for job in problem.jobs]
        model, read = _model(problem, per_job, formulation)
        answer = _answer(model, seconds, process)
        solution = _feasible_counts(per_job, problem, read, answer.solution)
        counts, outcome = judge_answer(problem, per_job, formulation, answer, solution)
        objective = objective_of(per_job, counts)
    if any(map(requires_group, problem.jobs)):
        table = GroupTable.of(problem)
        found_as = settle_groups(table, counts)
        if found_as is None:
            grouped = solve_in_groups(table, lambda model, most: _answer(model, min(seconds, most), process))
            counts, found_as = grouped.counts, grouped.placed_as
            outcome = SolveOutcome("OPTIMAL" if grouped.proven else "FEASIBLE", grouped.solver, grouped.reason)
            objective = objective_of([scale_values(job, problem) for job in problem.jobs], counts)
        assignments = place_parts(found_as, problem)
    else:
        if not can_be_placed(problem, counts):
            counts, outcome = _solve_by_kind(problem, counts, seconds, process)
            objective = objective_of([scale_values(job, problem) for job in problem.jobs], counts)
        assignments = place(problem, counts)
    elapsed = time.perf_counter() - started
    return Allocation(objective, outcome.status, outcome.solver, elapsed, assignments, outcome.reason)


@dataclass(frozen=True)
class SolveOutcome:
    """How an allocation was found.

    Attributes:
        status: `OPTIMAL`, `FEASIBLE`, or `UNCHANGED`.
        solver: What found it.
        reason: Why that was not the first solver that was asked; empty if it was.
    """

    status: str
    solver: str
    reason: str = ""


def _solve_by_kind(
    problem: AllocationProblem, wanted: Sequence[int], seconds: float, process: SolverProcess | None
) -> tuple[list[int], SolveOutcome]:
    """The optimum where not all nodes suit all jobs; without one in time, the best solution that is known.

    Args:
        wanted: Nodes of each job in the optimum without regard to kinds.
        seconds: Wall-clock limit of HiGHS in seconds.
        process: The process in which HiGHS runs; None starts one.
    """
    per_job, groups = [scale_values(job, problem) for job in problem.jobs], groups_of(problem)
    table = KindTable.of(problem)
    answer = _answer(kinds_model(per_job, table, groups, problem.max_nodes), seconds, process)
    counts = _feasible_counts(per_job, problem, lambda solution: read_counts(per_job, solution), answer.solution)
    if counts is not None and not can_be_placed(problem, counts):
        counts = None
    if counts is not None and answer.proven:
        return counts, SolveOutcome("OPTIMAL", "highs-kinds")
    reason = f"highs-kinds: {answer.problem or 'its solution is not feasible'}"
    in_turn = placeable_counts(table, [scales.sizes.tolist() for scales in per_job], wanted)
    choices = [
        (counts, SolveOutcome("FEASIBLE", "highs-kinds", reason)),
        (in_turn, SolveOutcome("FEASIBLE", "greedy", reason)),
    ]
    present = present_counts(per_job, problem.capacity, groups)
    if can_be_placed(problem, present):
        choices.append((present, SolveOutcome("UNCHANGED", "present", reason)))
    possible = [(counts, outcome) for counts, outcome in choices if counts is not None]
    return max(possible, key=lambda choice: objective_of(per_job, choice[0]))


def _answer(model: MilpModel, seconds: float, process: SolverProcess | None) -> SolverAnswer:
    own = process or SolverProcess()
    try:
        return own.solve(model, seconds)
    finally:
        if process is None:
            own.close()


def _feasible_counts(
    per_job: Sequence[ScaleValues], problem: AllocationProblem, read: ReadSolution, solution: Floats | None
) -> list[int] | None:
    """The counts of a solution; None where there is none, or where rounding has made it infeasible."""
    if solution is None:
        return None
    counts = read(solution)
    permitted = all(count in scales.sizes for scales, count in zip(per_job, counts, strict=True))
    within = sum(counts) <= problem.capacity and all(group.keeps(counts) for group in groups_of(problem))
    return counts if permitted and within else None


def judge_answer(
    problem: AllocationProblem,
    per_job: Sequence[ScaleValues],
    formulation: Formulation,
    answer: SolverAnswer,
    solution: list[int] | None,
) -> tuple[list[int], SolveOutcome]:
    """HiGHS's solution if it is proven optimal, else that of the first possible fallback."""
    solver = f"highs-{formulation.value}"
    if solution is not None and answer.proven:
        return solution, SolveOutcome("OPTIMAL", solver)
    reason = f"{solver}: {answer.problem or 'its solution is not feasible'}"
    pool, groups = problem.capacity, groups_of(problem)
    steps = sum(len(scales.sizes) for scales in per_job) * (pool + 1)
    if formulation is not Formulation.MILP and steps <= MAX_DP:
        return best_counts(per_job, pool, groups), SolveOutcome("OPTIMAL", "dp", reason)
    present = present_counts(per_job, pool, groups)
    # BFTrainer, §3.6: at a time-out the better of the present map and of the best solution so far.
    if solution is not None and objective_of(per_job, solution) > objective_of(per_job, present):
        return solution, SolveOutcome("FEASIBLE", solver, reason)
    return present, SolveOutcome("UNCHANGED", "present", reason)


def _model(
    problem: AllocationProblem, per_job: Sequence[ScaleValues], formulation: Formulation
) -> tuple[MilpModel, ReadSolution]:
    if formulation in (Formulation.COUNTS, Formulation.MILP):
        groups = groups_of(problem)
        # The reduction holds only if the pool is the jobs' only constraint.
        slim = list(per_job) if groups else reduce_sizes(per_job, problem.capacity)
        model = counts_model(slim, problem.capacity, groups)
        if formulation is Formulation.MILP:
            present = present_counts(per_job, problem.capacity, groups)
            model = replace(model, incumbent=solution_of(slim, present))
        return model, lambda solution: read_counts(slim, solution)
    nodes = node_model(problem)
    return nodes.model, lambda solution: read_node_counts(nodes, solution)
