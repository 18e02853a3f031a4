"""Which groups each job is in whose nodes must be in groups, given how many nodes each job gets. Pure.

All nodes of the job must be in one group, or all nodes of each of its replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.allocator.problem.group_table import (
    GroupOption,
    GroupPart,
    GroupTable,
    PartedProblem,
    up_to_whole,
    whole,
)
from malletrain.allocator.solvers.kind_flow import can_be_placed
from malletrain.model.topology import GroupPath, shared_levels


def settle_groups(table: GroupTable, counts: Sequence[int], *, as_they_are: bool = False) -> PartedProblem | None:
    """The problem with groups for each job that must be in some, in which there are nodes for all; None: none is found.

    A job without nodes goes to the group with the fewest nodes to spare that has enough; larger jobs choose first. So
    does what a job needs besides the replicas that it has.

    Args:
        table: The problem.
        counts: Nodes of each job.
        as_they_are: Whether jobs that are to have as many nodes as they have keep these, whatever groups they are in.
    """
    impossible = [job for job in table.options if not table.possible(job, counts[job])]
    if any(not as_they_are or counts[job] != len(table.problem.jobs[job].current_nodes) for job in impossible):
        return None
    chosen = chosen_groups(table, counts)
    if any(counts[job] != sum(part.nodes for part in chosen.get(job, ())) for job in table.options.keys() - impossible):
        return None
    placed = table.within(chosen, counts)
    return placed if can_be_placed(placed.problem, placed.counts) else None


def kept_parts(table: GroupTable, job: int, nodes: int) -> list[GroupPart]:
    """What a job keeps that gives up nodes, in whole replicas: those of the groups with the most of them."""
    replica, parts = table.replica(job), list[GroupPart]()
    for option in sorted(table.options[job], key=lambda option: -whole(len(option.held), replica)):
        if count := min(nodes, whole(len(option.held), replica)):
            parts.append(GroupPart(option, count))
            nodes -= count
    return parts


def chosen_groups(table: GroupTable, counts: Sequence[int]) -> dict[int, list[GroupPart]]:
    """Groups for each job that must be in some and has or gets nodes, by the groups' nodes that are to spare.

    Jobs for which no numbers are `GroupTable.possible` are left out. The parts of a job whose replicas find no group
    have fewer nodes than it is to get.
    """
    choice = _Choice(table, counts)
    for job in table.options:
        choice.keep(job)
    # Those first that have few groups to choose from, then those that need the most nodes in one group.
    for job in sorted(choice.missing, key=lambda job: (len(table.options[job]), -choice.together(job), job)):
        choice.take(job)
    return choice.chosen


class _Choice:
    """The groups that have been chosen so far.

    Attributes:
        chosen: Groups of jobs.
        missing: How many nodes more jobs need.
    """

    def __init__(self, table: GroupTable, counts: Sequence[int]) -> None:
        self._table, self._counts = table, counts
        self._spare = _spare(table, counts)
        self._taken: dict[GroupPath, int] = {}
        self.chosen: dict[int, list[GroupPart]] = {}
        self.missing: dict[int, int] = {}

    def together(self, job: int) -> int:
        """How many of the nodes that a job is to take must be in one group."""
        return self._table.replica(job) or self.missing[job]

    def keep(self, job: int) -> None:
        """Choose the groups that a job has nodes in and stays in."""
        table, count = self._table, self._counts[job]
        own, replica, present = table.options[job], table.replica(job), len(table.problem.jobs[job].current_nodes)
        if not table.possible(job, count):
            return
        if not replica and present:
            self._add(job, max(own, key=lambda option: option.room), count)
            return
        if count and count < present:
            self.chosen[job] = kept_parts(table, job, count)
            return
        staying = [(option, up_to_whole(len(option.held), replica)) for option in own if option.held] if count else []
        for option, nodes in staying:
            self._add(job, option, nodes)
        if missing := count - sum(nodes for _, nodes in staying):
            self.missing[job] = missing

    def take(self, job: int) -> None:
        """Choose groups for the nodes that a job needs more: one for all, or for as many replicas as there are."""
        own, replica = self._table.options[job], self._table.replica(job)
        while self.missing[job]:
            room = [whole(self._room(option), replica) for option in own]
            enough = [place for place, free in enumerate(room) if free >= self.missing[job]]
            far = [self._distance(job, option) for option in own]
            if enough:
                best = min(enough, key=lambda place: (far[place], room[place]))
            else:
                best = max(range(len(own)), key=lambda place: (room[place], -far[place]))
            nodes = min(self.missing[job], room[best]) if replica else self.missing[job]
            if nodes <= 0:
                break
            self._add(job, own[best], nodes)
            self.missing[job] -= nodes

    def _room(self, option: GroupOption) -> int:
        """How many nodes of a group are to spare."""
        if not option.grows:
            return 0
        return sum(self._spare[cell] for cell in option.cells) - self._taken.get(option.group or (), 0)

    def _distance(self, job: int, option: GroupOption) -> int:
        """How far a group is from those that a job has, in levels; 0 where it has none."""
        paths = [part.option.group for part in self.chosen.get(job, ()) if part.option.group]
        if not paths or not option.group:
            return 0
        return len(option.group) - max(shared_levels((path, option.group)) or 0 for path in paths)

    def _add(self, job: int, option: GroupOption, nodes: int) -> None:
        """Give a job nodes of a group."""
        parts = self.chosen.setdefault(job, [])
        place = next((place for place, part in enumerate(parts) if part.option is option), None)
        if place is None:
            more = max(0, nodes - len(option.held))
            parts.append(GroupPart(option, nodes))
        else:
            more = nodes
            parts[place] = GroupPart(option, parts[place].nodes + nodes)
        for depth in range(1, len(option.group or ()) + 1):
            group = (option.group or ())[:depth]
            self._taken[group] = self._taken.get(group, 0) + more


def _spare(table: GroupTable, counts: Sequence[int]) -> list[int]:
    """Nodes of each cell that jobs which do not shrink have left."""
    spare = [len(names) for names in table.cells]
    for job, count in zip(table.problem.jobs, counts, strict=True):
        if count >= len(job.current_nodes):
            for name in job.current_nodes:
                spare[table.cell_of[name]] -= 1
    return spare
