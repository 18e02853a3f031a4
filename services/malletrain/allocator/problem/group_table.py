"""Jobs whose nodes must all be in one group, such as a rack: which groups each of them could be in. Pure.

A job that has nodes stays in their group. One whose nodes are in several groups, since it has become known anew where
nodes are, keeps nodes of one of them only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, NodeKind
from malletrain.allocator.problem.kinds import suitable_nodes
from malletrain.model.topology import GroupPath, TopologyPreference, group_of


@dataclass(frozen=True)
class GroupOption:
    """A group that a job's nodes may be in.

    Attributes:
        group: Its name, from the outermost level; None: nodes that the job has, of which the group is not known.
        cells: Cells of the group that the job may have nodes of.
        held: Nodes that the job has there.
        room: Most nodes that it may have there.
        grows: Whether it may take more there than it has.
    """

    group: GroupPath | None
    cells: frozenset[int]
    held: tuple[str, ...]
    room: int
    grows: bool = True


@dataclass(frozen=True)
class GroupTable:
    """A problem's nodes by kind and group, and the groups that jobs may be in.

    Attributes:
        problem: The problem.
        cells: Nodes that no job's needs and no required group tell apart.
        kind_of: Kind of each cell's nodes, an index in the problem's kinds, or their number where the nodes suit all.
        options: By index of the job; only of jobs whose nodes must be in one group.
    """

    problem: AllocationProblem
    cells: tuple[tuple[str, ...], ...]
    kind_of: tuple[int, ...]
    options: Mapping[int, tuple[GroupOption, ...]]

    @classmethod
    def of(cls, problem: AllocationProblem) -> GroupTable:
        """The table of a valid problem."""
        levels = {job.topology_level for job in problem.jobs if requires_group(job)}
        depth = None if 0 in levels else max(levels, default=0)
        kinds = dict.fromkeys(problem.nodes, len(problem.kinds))
        kinds.update((name, kind) for kind, entry in enumerate(problem.kinds) for name in entry.nodes)
        members: dict[tuple[int, GroupPath], list[str]] = {}
        for name in problem.nodes:
            members.setdefault((kinds[name], problem.paths.get(name, ())[:depth]), []).append(name)
        cells = tuple(map(tuple, members.values()))
        finder = _Finder(tuple(members), cells)
        options = {index: finder.options(job) for index, job in enumerate(problem.jobs) if requires_group(job)}
        return cls(problem, cells, tuple(kind for kind, _ in members), options)

    def most_nodes(self, job: int) -> int:
        """Most nodes that a job which must be in one group could have."""
        return max((option.room for option in self.options[job]), default=0)

    def by_cells(self) -> AllocationProblem:
        """The problem with the cells as its kinds: a job has unsuitable nodes only outside of all its groups."""
        kinds = tuple(map(NodeKind, self.cells))
        jobs = []
        for index, job in enumerate(self.problem.jobs):
            own = self.options.get(index)
            if own is None:
                barred = [cell for cell, kind in enumerate(self.kind_of) if kind in job.unsuitable_kinds]
            else:
                allowed = frozenset[int]().union(*(option.cells for option in own if option.grows))
                barred = [cell for cell in range(len(self.cells)) if cell not in allowed]
            jobs.append(replace(job, unsuitable_kinds=tuple(barred)))
        return replace(self.problem, jobs=tuple(jobs), kinds=kinds)

    def within(self, chosen: Mapping[int, GroupOption], counts: Sequence[int] | None = None) -> AllocationProblem:
        """The problem in which only kinds of nodes constrain where jobs are: each is in the group that was chosen.

        Args:
            chosen: The group of each job that must be in one and gets nodes, by the job's index.
            counts: Nodes of each job; then only groups of jobs that grow are told apart. None: all are.
        """
        held = {index: option.held for index, option in chosen.items()}
        bound = {
            index: option.cells
            for index, option in chosen.items()
            if option.grows and (counts is None or counts[index] > len(option.held))
        }
        jobs = [
            replace(job, current_nodes=held[index])
            if index in held and len(held[index]) != len(job.current_nodes)
            else job
            for index, job in enumerate(self.problem.jobs)
        ]
        if not bound:
            return replace(self.problem, jobs=tuple(jobs))
        groups = list(dict.fromkeys(bound.values()))
        members: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for cell, (kind, names) in enumerate(zip(self.kind_of, self.cells, strict=True)):
            inside = tuple(place for place, group in enumerate(groups) if cell in group)
            members.setdefault((kind, inside), []).extend(names)
        place_of = {group: place for place, group in enumerate(groups)}
        for index, job in enumerate(jobs):
            if index in bound:
                own = place_of[bound[index]]
                barred = tuple(at for at, (_, inside) in enumerate(members) if own not in inside)
            else:
                barred = tuple(at for at, (kind, _) in enumerate(members) if kind in job.unsuitable_kinds)
            jobs[index] = replace(job, unsuitable_kinds=barred)
        return replace(self.problem, jobs=tuple(jobs), kinds=tuple(NodeKind(tuple(own)) for own in members.values()))


def requires_group(job: JobDemand) -> bool:
    """Whether all nodes of a job must be in one group."""
    return job.topology is TopologyPreference.REQUIRE


def largest_group(problem: AllocationProblem, job: JobDemand, nodes: Iterable[str]) -> int:
    """How many of some nodes that suit a job are in the group that has most of them."""
    usable, found = suitable_nodes(problem, job), dict[GroupPath, int]()
    for name in nodes:
        group = group_of(problem.paths.get(name, ()), job.topology_level)
        if group is not None and name in usable:
            found[group] = found.get(group, 0) + 1
    return max(found.values(), default=0)


class _Finder:
    """Finds the groups that jobs may be in."""

    def __init__(self, keys: Sequence[tuple[int, GroupPath]], cells: Sequence[Sequence[str]]) -> None:
        self._keys = keys
        self._sizes = [len(names) for names in cells]
        self._cell_of = {name: cell for cell, names in enumerate(cells) for name in names}
        self._groups: dict[int, dict[GroupPath, list[int]]] = {}

    def options(self, job: JobDemand) -> tuple[GroupOption, ...]:
        """The groups of a job, those that it has nodes in if it has any."""
        groups = self._by_group(job.topology_level)
        if not job.current_nodes:
            found = (self._option(job, group, cells) for group, cells in groups.items())
            return tuple(option for option in found if option.room >= job.min_nodes)
        held: dict[GroupPath | None, list[str]] = {}
        for name in job.current_nodes:
            path = self._keys[self._cell_of[name]][1]
            held.setdefault(group_of(path, job.topology_level), []).append(name)
        if len(held) == 1 and (group := next(iter(held))) is not None:
            return (self._option(job, group, groups[group]),)
        return tuple(
            GroupOption(group, frozenset(self._cell_of[name] for name in names), tuple(names), len(names), grows=False)
            for group, names in held.items()
        )

    def _option(self, job: JobDemand, group: GroupPath, cells: Sequence[int]) -> GroupOption:
        suited = [cell for cell in cells if self._keys[cell][0] not in job.unsuitable_kinds]
        room = sum(self._sizes[cell] for cell in suited)
        if job.current_nodes:  # it keeps what has come to be unsuitable
            allowed = frozenset(suited)
            room += sum(self._cell_of[name] not in allowed for name in job.current_nodes)
        return GroupOption(group, frozenset(suited), job.current_nodes, room)

    def _by_group(self, level: int) -> dict[GroupPath, list[int]]:
        if level not in self._groups:
            found = self._groups[level] = {}
            for cell, (_, path) in enumerate(self._keys):
                if (group := group_of(path, level)) is not None:
                    found.setdefault(group, []).append(cell)
        return self._groups[level]
