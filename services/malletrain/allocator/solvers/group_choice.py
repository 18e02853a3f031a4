"""Which group each job is in whose nodes must all be in one, given how many nodes each job gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.problem.group_table import GroupOption, GroupTable
from malletrain.allocator.solvers.kind_flow import can_be_placed
from malletrain.model.topology import GroupPath

Chosen = Mapping[int, GroupOption]
"""The group of each job that must be in one, by the job's index."""


def settled(table: GroupTable, counts: Sequence[int]) -> AllocationProblem | None:
    """The problem with a group for each job that must be in one, in which there are nodes for all; None: none is found.

    A job without nodes goes to the group with the fewest nodes to spare that has enough; larger jobs choose first.

    Args:
        table: The problem.
        counts: Nodes of each job.
    """
    if any(counts[job] > table.most_nodes(job) for job in table.options):
        return None
    problem = table.within(chosen_groups(table, counts), counts)
    return problem if can_be_placed(problem, counts) else None


def chosen_groups(table: GroupTable, counts: Sequence[int]) -> dict[int, GroupOption]:
    """A group for each job that must be in one and has or gets nodes, by the groups' nodes that are to spare."""
    spare = _spare(table, counts)
    taken: dict[GroupPath, int] = {}
    chosen: dict[int, GroupOption] = {}

    def choose(job: int, option: GroupOption) -> None:
        chosen[job] = option
        for depth in range(1, len(option.group or ()) + 1):
            group = (option.group or ())[:depth]
            taken[group] = taken.get(group, 0) + max(0, counts[job] - len(option.held))

    waiting = []
    for job, own in table.options.items():
        if table.problem.jobs[job].current_nodes:
            choose(job, max(own, key=lambda option: option.room))
        elif counts[job]:
            waiting.append(job)
    # Those first that have few groups to choose from, then the larger ones.
    for job in sorted(waiting, key=lambda job: (len(table.options[job]), -counts[job], job)):
        room = [
            sum(spare[cell] for cell in option.cells) - taken.get(option.group or (), 0)
            for option in table.options[job]
        ]
        enough = [place for place, free in enumerate(room) if free >= counts[job]]
        best = min(enough, key=room.__getitem__) if enough else max(range(len(room)), key=room.__getitem__)
        choose(job, table.options[job][best])
    return chosen


def _spare(table: GroupTable, counts: Sequence[int]) -> list[int]:
    """Nodes of each cell that jobs which do not shrink have left."""
    cell_of = {name: cell for cell, names in enumerate(table.cells) for name in names}
    spare = [len(names) for names in table.cells]
    for job, count in zip(table.problem.jobs, counts, strict=True):
        if count >= len(job.current_nodes):
            for name in job.current_nodes:
                spare[cell_of[name]] -= 1
    return spare
