"""How many nodes each job gets where the nodes of some, or of each of their replicas, must be in one group, as a rack.

The optimum without regard to groups is the optimum if the jobs can be placed so. Otherwise it is solved again with
what is sure: no job has another number than it could have if it were alone, a job that must be in one group and has
nodes stays there, and all jobs of such a group have its nodes at most. If that can't be placed either, HiGHS solves the
model by kinds of nodes, with a variable for each group that a job could be in. Problems that are too large for that get
the best of some good choices of groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from malletrain.allocator.problem.group_table import (
    Chosen,
    GroupOption,
    GroupPart,
    GroupTable,
    PartedProblem,
    up_to_whole,
    whole,
)
from malletrain.allocator.problem.objective import ScaleValues, objective_of, scale_values
from malletrain.allocator.solvers.choice_table import best_counts, groups_of, present_counts
from malletrain.allocator.solvers.group_choice import chosen_groups, kept_parts, settle_groups
from malletrain.allocator.solvers.kind_flow import KindTable, can_be_placed, placeable_counts
from malletrain.allocator.solvers.milp import MilpModel
from malletrain.allocator.solvers.milp_counts import read_counts
from malletrain.allocator.solvers.milp_kinds import kinds_model, read_groups
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup
from malletrain.allocator.solvers.solver_process import SolverAnswer
from malletrain.model.topology import group_of

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
        placed_as: The problem in which only kinds of nodes constrain where jobs are, for `placement.place_parts`.
        proven: Whether no plan is better.
        solver: "dp", "highs-groups" or "greedy".
        reason: Why it is not HiGHS's optimum; empty where it is an optimum.
    """

    counts: list[int]
    placed_as: PartedProblem
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
    per_job = [table.possible_scales(index, scale_values(job, problem)) for index, job in enumerate(problem.jobs)]
    owners, pool = groups_of(problem), problem.capacity
    sure = {job: own[0] for job, own in table.options.items() if len(own) == 1 and not table.replica(job)}
    bound = best_counts(per_job, pool, owners or (*_limits(table, sure), *_replica_limits(table)))
    if (placed := settle_groups(table, bound)) is not None:
        return GroupedCounts(bound, placed, proven=True, solver="dp")
    reason = f"highs-groups: a model of more than {_MAX_VARIABLES} variables"
    solution: GroupedCounts | None = None
    if (variables := _variables(table, per_job)) <= _MAX_VARIABLES:
        seconds = inf if variables <= _SMALL else _SECONDS
        solution, reason = _by_highs(table, per_job, owners, lambda model: solve_model(model, seconds))
        if solution is not None and solution.proven:
            return solution
    best = max(_greedy(table, per_job, bound, owners), key=lambda one: objective_of(per_job, one[0]))
    if solution is None or objective_of(per_job, solution.counts) < objective_of(per_job, best[0]):
        solution = GroupedCounts(*best, proven=False, solver="greedy")
    value, most = objective_of(per_job, solution.counts), objective_of(per_job, bound)
    more = f"; a better plan is worth at most {max(0.0, most / value - 1):.2%} more" if value > 0 else ""
    return replace(solution, reason=f"{reason}{more}")


def kind_table(table: GroupTable) -> KindTable:
    """The table for `kinds_model`."""
    replicas = {job: replica for job in table.options if (replica := table.replica(job))}
    options = {
        job: tuple(option.cells.union(map(table.cell_of.__getitem__, option.held)) for option in own)
        for job, own in table.options.items()
        if len(own) > 1 or job in replicas
    }
    return replace(KindTable.of(table.by_cells()), options=options, replicas=replicas)


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
    counts = read_counts(per_job, answer.solution)
    places = read_groups(per_job, kinds, answer.solution, counts)
    chosen = {
        job: [
            GroupPart(option, nodes)
            for option, nodes in zip(own, places.get(job, (counts[job],)), strict=True)
            if nodes
        ]
        for job, own in table.options.items()
        if counts[job]
    }
    within = sum(counts) <= table.problem.capacity and all(group.keeps(counts) for group in owners)
    fits = all(part.nodes <= part.option.room for parts in chosen.values() for part in parts)
    if not (within and fits and all(counts[job] == _nodes(parts) for job, parts in chosen.items())):
        return None, reason
    placed = table.within(chosen, counts)
    if not can_be_placed(placed.problem, placed.counts):
        return None, reason
    return GroupedCounts(counts, placed, answer.proven, "highs-groups"), reason


def _variables(table: GroupTable, per_job: Sequence[ScaleValues]) -> int:
    """How many variables HiGHS's model has."""
    scales = sum(len(scales.useful()) for scales in per_job)
    return scales + len(per_job) * len(table.cells) + sum(map(len, table.options.values()))


def _nodes(parts: Sequence[GroupPart]) -> int:
    return sum(part.nodes for part in parts)


def _limits(
    table: GroupTable, chosen: Mapping[int, GroupOption], staying: Sequence[int] = ()
) -> tuple[OwnerGroup, ...]:
    """All nodes of each group as the limit of the jobs that are in it.

    Args:
        table: The problem.
        chosen: The groups of jobs that must be in one.
        staying: Jobs, by their indices, that keep the nodes that they have in groups which they are not bound to.
    """
    jobs: dict[frozenset[int], list[int]] = {}
    for job, option in sorted(chosen.items()):
        if option.grows:
            jobs.setdefault(option.cells, []).append(job)
    held = [Counter(table.cell_of[name] for name in job.current_nodes) for job in table.problem.jobs]
    occupied = Counter[int]()
    for job in staying:
        occupied.update(held[job])
    limits = []
    for cells, members in jobs.items():
        room = sum(len(table.cells[cell]) for cell in cells)
        # What members have of nodes that have come to be unsuitable.
        room += sum(count for job in members for cell, count in held[job].items() if cell not in cells)
        if occupied:
            inside = [job for job in staying if job in chosen and chosen[job].grows and chosen[job].cells <= cells]
            room -= sum(occupied[cell] - sum(held[job][cell] for job in inside) for cell in cells)
        limits.append(OwnerGroup("", tuple(members), max(0, room)))
    return tuple(limits)


def _replica_limits(table: GroupTable) -> tuple[OwnerGroup, ...]:
    """All nodes in whole replicas as the limit of the jobs with replicas of one size, in groups of one level."""
    problem, members = table.problem, dict[tuple[int, int], list[int]]()
    for job in table.options:
        if replica := table.replica(job):
            members.setdefault((problem.jobs[job].topology_level, replica), []).append(job)
    limits = []
    for (level, replica), jobs in members.items():
        groups = Counter(group_of(problem.paths.get(name, ()), level) for name in problem.nodes)
        groups.pop(None, None)
        room = sum(whole(size, replica) for size in groups.values())
        # Jobs may keep nodes whose group is not known.
        room += sum(len(option.held) for job in jobs for option in table.options[job] if option.group is None)
        limits.append(OwnerGroup("", tuple(jobs), room))
    return tuple(limits)


def _greedy(
    table: GroupTable, per_job: Sequence[ScaleValues], wanted: Sequence[int], owners: Sequence[OwnerGroup]
) -> Iterator[tuple[list[int], PartedProblem]]:
    """Some good numbers of nodes that can be placed, with the problem that they are placed in; at least one."""
    present = present_counts(per_job, table.problem.capacity, owners)
    yield _in_turn(table, chosen_groups(table, present), per_job, present)
    chosen = chosen_groups(table, wanted)
    fixed = [
        _at_most(scales, 0) if index in table.options and index not in chosen else scales
        for index, scales in enumerate(per_job)
    ]
    first = _in_turn(table, chosen, fixed, wanted)
    yield first
    if owners:
        return  # what is wanted keeps their limits
    # Replicas for which there was no place are left to others.
    fixed = [
        _at_most(scales, first[0][job]) if job in table.options and table.replica(job) else scales
        for job, scales in enumerate(fixed)
    ]
    staying = [index for index, job in enumerate(table.problem.jobs) if wanted[index] >= len(job.current_nodes)]
    single = {job: parts[0].option for job, parts in chosen.items() if not table.replica(job)}
    limits = (*_limits(table, single, staying), *_replica_limits(table))
    counts = best_counts(fixed, table.problem.capacity, limits)
    # Jobs that must be in one group stay in those for which the limits are; replicas choose again.
    anew = chosen_groups(table, counts) | {job: [GroupPart(option, counts[job])] for job, option in single.items()}
    yield _in_turn(table, anew, fixed, counts)


def _at_most(scales: ScaleValues, max_nodes: int) -> ScaleValues:
    """A job's scales of so many nodes at most."""
    last = int(np.searchsorted(scales.sizes, max_nodes, side="right"))
    return replace(scales, sizes=scales.sizes[:last], values=scales.values[:last], costs=scales.costs[:last])


def _in_turn(
    table: GroupTable, chosen: Chosen, per_job: Sequence[ScaleValues], wanted: Sequence[int]
) -> tuple[list[int], PartedProblem]:
    """Each job in turn gets as many nodes of its groups as there are, up to what is wanted."""
    parted = table.within(chosen, wanted, strictly=True)
    sizes = [
        range(0, count + 1, table.replica(job)) if job in chosen and table.replica(job) else per_job[job].sizes.tolist()
        for job, count in zip(parted.job_of, parted.counts, strict=True)
    ]
    placed: dict[int, list[int]] = {}
    most = placeable_counts(KindTable.of(parted.problem), sizes, parted.counts)
    for job, count in zip(parted.job_of, most, strict=True):
        placed.setdefault(job, []).append(count)
    counts, parts_of = [sum(placed[job]) for job in range(len(per_job))], dict[int, list[GroupPart]]()
    for job, parts in chosen.items():
        parts_left = [GroupPart(part.option, count) for part, count in zip(parts, placed[job], strict=True)]
        if table.replica(job):
            parts_left = _permitted_parts(table, job, parts_left, per_job[job].sizes.tolist())
            counts[job] = _nodes(parts_left)
        if counts[job]:
            parts_of[job] = parts_left
    return counts, table.within(parts_of, counts)


def _permitted_parts(table: GroupTable, job: int, parts: Sequence[GroupPart], sizes: Sequence[int]) -> list[GroupPart]:
    """The most of a job's replicas, of those for which there are nodes, that make a scale which it may have.

    If it can't complete what it has, it keeps the largest scale of the whole replicas that it has.
    """
    have = {part.option.group: part.nodes for part in parts}
    completes = all(have.get(option.group, 0) >= len(option.held) for option in table.options[job])
    least = table.least(job) if completes else inf
    size = max((size for size in sizes if least <= size <= _nodes(parts)), default=0)
    if not size:
        most = min(_nodes(parts), table.most_kept(job))
        return kept_parts(table, job, max(size for size in sizes if size <= most))
    surplus, permitted = _nodes(parts) - size, list[GroupPart]()
    for part in reversed(parts):
        less = min(surplus, part.nodes - up_to_whole(len(part.option.held), table.replica(job)))
        surplus -= less
        if part.nodes > less:
            permitted.append(GroupPart(part.option, part.nodes - less))
    return permitted[::-1]
