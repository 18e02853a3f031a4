"""How many nodes each job gets where the nodes of some must all be in one group, such as a rack.

The optimum without regard to groups is the optimum if the jobs can be placed so. Otherwise it is solved again with
what is sure: a job that has nodes stays in its group, all jobs of a group have its nodes at most, and no job has more
than its largest group. If that can't be placed either, HiGHS solves the model by kinds of nodes, with a variable for
each group that a job could be in. Problems that are too large for that get the best of some good choices of groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.problem.group_table import GroupTable
from malletrain.allocator.problem.objective import ScaleValues, objective_of, scale_values
from malletrain.allocator.solvers.choice_table import best_counts, groups_of
from malletrain.allocator.solvers.group_choice import Chosen, chosen_groups, settled
from malletrain.allocator.solvers.kind_flow import KindTable, can_be_placed, placeable_counts
from malletrain.allocator.solvers.milp import MilpModel
from malletrain.allocator.solvers.milp_counts import read_counts
from malletrain.allocator.solvers.milp_kinds import kinds_model, read_groups
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup
from malletrain.allocator.solvers.solver_process import SolverAnswer

_SMALL = 500
"""Variables of a model up to which HiGHS has all the time that a solve may take."""
_MAX_VARIABLES = 3000
"""Most variables of a model that HiGHS is given."""
_SECONDS = 1.0
"""Wall-clock limit of HiGHS for models of so many."""

SolveModel = Callable[[MilpModel, float], SolverAnswer]
"""Has HiGHS solve a model, within so many seconds at most."""


@dataclass(frozen=True)
class GroupedCounts:
    """Numbers of nodes that can be placed.

    Attributes:
        counts: Nodes of each job.
        placed_as: The problem in which only kinds of nodes constrain where jobs are, for `placement.place`.
        proven: Whether no plan is better.
        solver: "dp", "highs-groups" or "greedy".
        reason: Why it is not HiGHS's optimum; empty where it is an optimum.
    """

    counts: list[int]
    placed_as: AllocationProblem
    proven: bool
    solver: str
    reason: str = ""


def solve_in_groups(table: GroupTable, solve_model: SolveModel) -> GroupedCounts:
    """The best numbers of nodes that can be placed, proven where the problem is small.

    Args:
        table: The problem.
        solve_model: Has HiGHS solve a model within its limit, and within this many seconds.
    """
    problem = table.problem
    per_job = [
        _limited(scale_values(job, problem), table.most_nodes(index) if index in table.options else None)
        for index, job in enumerate(problem.jobs)
    ]
    owners, pool = groups_of(problem), problem.capacity
    sure = {index: own[0] for index, own in table.options.items() if len(own) == 1}
    bound = best_counts(per_job, pool, owners or _limits(table, sure))
    if (placed := settled(table, bound)) is not None:
        return GroupedCounts(bound, placed, proven=True, solver="dp")
    reason = f"highs-groups: a model of more than {_MAX_VARIABLES} variables"
    found: GroupedCounts | None = None
    if (variables := _variables(table, per_job)) <= _MAX_VARIABLES:
        seconds = inf if variables <= _SMALL else _SECONDS
        found, reason = _by_highs(table, per_job, owners, lambda model: solve_model(model, seconds))
        if found is not None and found.proven:
            return found
    best = max(_greedy(table, per_job, bound, owners), key=lambda one: objective_of(per_job, one[0]))
    if found is None or objective_of(per_job, found.counts) < objective_of(per_job, best[0]):
        found = GroupedCounts(*best, proven=False, solver="greedy")
    value, most = objective_of(per_job, found.counts), objective_of(per_job, bound)
    more = f"; a better plan is worth at most {max(0.0, most / value - 1):.2%} more" if value > 0 else ""
    return replace(found, reason=f"{reason}{more}")


def kind_table(table: GroupTable) -> KindTable:
    """The table for `kinds_model`."""
    several = {job: tuple(option.cells for option in own) for job, own in table.options.items() if len(own) > 1}
    return replace(KindTable.of(table.by_cells()), options=several)


def _by_highs(
    table: GroupTable,
    per_job: Sequence[ScaleValues],
    owners: Sequence[OwnerGroup],
    solve_model: Callable[[MilpModel], SolverAnswer],
) -> tuple[GroupedCounts | None, str]:
    """What HiGHS finds; None where that is nothing that can be placed. And why it is no proven optimum."""
    kinds = kind_table(table)
    answer = solve_model(kinds_model(per_job, kinds, owners, table.problem.max_nodes))
    reason = f"highs-groups: {answer.problem or 'its solution is not feasible'}"
    if answer.solution is None:
        return None, reason
    counts, places = read_counts(per_job, answer.solution), read_groups(per_job, kinds, answer.solution)
    chosen = {job: own[places.get(job, 0)] for job, own in table.options.items() if counts[job]}
    placed = table.within(chosen, counts)
    kept = sum(counts) <= table.problem.capacity and all(group.keeps(counts) for group in owners)
    if not kept or not all(counts[job] <= option.room for job, option in chosen.items()):
        return None, reason
    if not can_be_placed(placed, counts):
        return None, reason
    return GroupedCounts(counts, placed, answer.proven, "highs-groups"), reason


def _variables(table: GroupTable, per_job: Sequence[ScaleValues]) -> int:
    """How many variables HiGHS's model has."""
    scales = sum(len(scales.useful()) for scales in per_job)
    return scales + len(per_job) * len(table.cells) + sum(map(len, table.options.values()))


def _limited(scales: ScaleValues, most: int | None) -> ScaleValues:
    """A job's scales of so many nodes at most."""
    if most is None or scales.sizes[-1] <= most:
        return scales
    last = int(np.searchsorted(scales.sizes, most, side="right"))
    return replace(scales, sizes=scales.sizes[:last], values=scales.values[:last], costs=scales.costs[:last])


def _limits(table: GroupTable, chosen: Chosen, staying: Sequence[int] = ()) -> tuple[OwnerGroup, ...]:
    """All nodes of each group as the limit of the jobs that are in it.

    Args:
        table: The problem.
        chosen: Jobs' groups.
        staying: Jobs, by their indices, that keep the nodes that they have in groups which they are not bound to.
    """
    jobs: dict[frozenset[int], list[int]] = {}
    for job, option in sorted(chosen.items()):
        if option.grows:
            jobs.setdefault(option.cells, []).append(job)
    cell_of = {name: cell for cell, names in enumerate(table.cells) for name in names}
    held = [Counter(cell_of[name] for name in job.current_nodes) for job in table.problem.jobs]
    occupied = Counter[int]()
    for job in staying:
        occupied.update(held[job])
    found = []
    for cells, members in jobs.items():
        room = sum(len(table.cells[cell]) for cell in cells)
        # What members have of nodes that have come to be unsuitable.
        room += sum(count for job in members for cell, count in held[job].items() if cell not in cells)
        if occupied:
            inside = [job for job in staying if job in chosen and chosen[job].grows and chosen[job].cells <= cells]
            room -= sum(occupied[cell] - sum(held[job][cell] for job in inside) for cell in cells)
        found.append(OwnerGroup("", tuple(members), max(0, room)))
    return tuple(found)


def _greedy(
    table: GroupTable, per_job: Sequence[ScaleValues], wanted: Sequence[int], owners: Sequence[OwnerGroup]
) -> Iterator[tuple[list[int], AllocationProblem]]:
    """Some good numbers of nodes that can be placed, with the problem that they are placed in; at least one."""
    chosen = chosen_groups(table, wanted)
    fixed = [
        _limited(scales, 0) if index in table.options and index not in chosen else scales
        for index, scales in enumerate(per_job)
    ]
    yield _in_turn(table, chosen, fixed, wanted)
    if owners:
        return  # what is wanted keeps their limits
    staying = [index for index, job in enumerate(table.problem.jobs) if wanted[index] >= len(job.current_nodes)]
    found = best_counts(fixed, table.problem.capacity, _limits(table, chosen, staying))
    yield _in_turn(table, chosen, fixed, found)


def _in_turn(
    table: GroupTable, chosen: Chosen, per_job: Sequence[ScaleValues], wanted: Sequence[int]
) -> tuple[list[int], AllocationProblem]:
    """Each job in turn gets as many nodes of its group as there are, up to what is wanted."""
    problem = table.within(chosen)
    kinds = KindTable.of(problem)
    counts = placeable_counts(kinds, [scales.sizes.tolist() for scales in per_job], wanted)
    return counts, table.within({job: option for job, option in chosen.items() if counts[job]}, counts)
