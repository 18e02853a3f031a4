"""Jobs whose nodes must be in groups, such as racks: which groups each of them could be in. Pure.

All nodes of such a job must be in one group, or all nodes of each of its replicas: the job then has whole replicas in
each of its groups. One that has nodes keeps them where it grows, and takes no others where it shrinks. So a job that
must be in one group stays there. If its nodes are in several, since it has become known anew where nodes are, it keeps
those of one group only; and a replica that has lost nodes is completed, or given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, NodeKind
from malletrain.allocator.problem.kinds import suitable_nodes
from malletrain.model.topology import GroupPath, TopologyPreference, group_of

if TYPE_CHECKING:  # settings need pools, and no numpy
    from malletrain.allocator.problem.objective import ScaleValues


@dataclass(frozen=True)
class GroupOption:
    """A group that nodes of a job may be in.

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
class GroupPart:
    """How many nodes of a group a job gets."""

    option: GroupOption
    nodes: int


Chosen = Mapping[int, Sequence[GroupPart]]
"""The groups of each job that must be in groups and gets nodes, by the job's index."""


@dataclass(frozen=True)
class PartedProblem:
    """A problem in which only kinds of nodes constrain where jobs are.

    A job with nodes of several groups is several jobs there, its parts, one for each group.

    Attributes:
        problem: The problem of the parts, in the order of the jobs.
        counts: Nodes of each part.
        job_of: Which job each part belongs to, by its index.
    """

    problem: AllocationProblem
    counts: tuple[int, ...]
    job_of: tuple[int, ...]


@dataclass(frozen=True)
class GroupTable:
    """A problem's nodes by kind and group, and the groups that jobs may be in.

    Attributes:
        cells: Nodes that no job's needs and no required group tell apart.
        kind_of: Kind of each cell's nodes, an index in the problem's kinds, or their number where the nodes suit all.
        options: By index of the job; only of jobs whose nodes must be in groups.
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

    @cached_property
    def cell_of(self) -> Mapping[str, int]:
        """The cell of each node."""
        return {name: cell for cell, names in enumerate(self.cells) for name in names}

    def replica(self, job: int) -> int:
        """How many nodes of a job must be in one group: those of a replica; 0: all of them."""
        demand = self.problem.jobs[job]
        return demand.nodes_per_replica if demand.topology is TopologyPreference.REQUIRE_REPLICA else 0

    def least(self, job: int) -> int:
        """Fewest nodes of a job that keeps all that it has and completes its replicas."""
        return sum(up_to_whole(len(option.held), self.replica(job)) for option in self.options[job])

    def most_nodes(self, job: int) -> int:
        """Most nodes that a job which must be in groups could have, if it were alone."""
        own, replica = self.options[job], self.replica(job)
        if not replica:
            return max((option.room for option in own), default=0)
        if any(up_to_whole(len(option.held), replica) > option.room for option in own):
            return self.most_kept(job)  # it can't complete them all, and a job that gives up nodes takes no others
        return sum(whole(option.room, replica) for option in own)

    def most_kept(self, job: int) -> int:
        """How many nodes whole replicas of a job have now."""
        return sum(whole(len(option.held), self.replica(job)) for option in self.options[job])

    def possible(self, job: int, nodes: int) -> bool:
        """Whether a job that must be in groups could have so many nodes, if it were alone."""
        if not nodes or not (replica := self.replica(job)):
            return nodes <= self.most_nodes(job)
        if nodes % replica:
            return False
        if nodes < len(self.problem.jobs[job].current_nodes):
            return nodes <= self.most_kept(job)
        return self.least(job) <= nodes <= self.most_nodes(job)

    def possible_scales(self, job: int, scales: ScaleValues) -> ScaleValues:
        """The scales of a job that are `possible`."""
        if job not in self.options:
            return scales
        fits = [place for place, size in enumerate(scales.sizes.tolist()) if self.possible(job, size)]
        if len(fits) == len(scales.sizes):
            return scales
        return replace(scales, sizes=scales.sizes[fits], values=scales.values[fits], costs=scales.costs[fits])

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

    def within(self, chosen: Chosen, counts: Sequence[int], *, strictly: bool = False) -> PartedProblem:
        """The problem in which only kinds of nodes constrain where jobs are: each part is in its group.

        Args:
            chosen: The groups of jobs, with as many nodes as they get. Of these jobs, nodes in other groups are free.
            counts: Nodes of the other jobs.
            strictly: Whether groups of parts that do not grow are told apart, too.
        """
        jobs, sizes, job_of, bound = list[JobDemand](), list[int](), list[int](), dict[int, frozenset[int]]()
        for index, job in enumerate(self.problem.jobs):
            parts = chosen.get(index)
            for part in parts or (None,):
                if part is None:
                    jobs.append(job)
                    sizes.append(counts[index])
                else:
                    held = part.option.held
                    if part.option.grows and (strictly or part.nodes > len(held)):
                        bound[len(jobs)] = part.option.cells
                    jobs.append(job if len(held) == len(job.current_nodes) else replace(job, current_nodes=held))
                    sizes.append(part.nodes)
                job_of.append(index)
        divided = replace(self.problem, jobs=tuple(jobs))
        return PartedProblem(self._bound(divided, bound) if bound else divided, tuple(sizes), tuple(job_of))

    def _bound(self, problem: AllocationProblem, bound: Mapping[int, frozenset[int]]) -> AllocationProblem:
        """The problem with kinds of nodes that keep some of its jobs in cells."""
        groups = list(dict.fromkeys(bound.values()))
        members: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for cell, (kind, names) in enumerate(zip(self.kind_of, self.cells, strict=True)):
            inside = tuple(place for place, group in enumerate(groups) if cell in group)
            members.setdefault((kind, inside), []).extend(names)
        place_of = {group: place for place, group in enumerate(groups)}
        jobs = []
        for index, job in enumerate(problem.jobs):
            if index in bound:
                own = place_of[bound[index]]
                barred = tuple(at for at, (_, inside) in enumerate(members) if own not in inside)
            else:
                barred = tuple(at for at, (kind, _) in enumerate(members) if kind in job.unsuitable_kinds)
            jobs.append(replace(job, unsuitable_kinds=barred))
        return replace(problem, jobs=tuple(jobs), kinds=tuple(NodeKind(tuple(own)) for own in members.values()))


def requires_group(job: JobDemand) -> bool:
    """Whether the nodes of a job must be in groups: all in one, or all of each replica."""
    return job.topology.requires


def whole(nodes: int, replica: int) -> int:
    """How many of so many nodes are in whole replicas; all where there are none."""
    return nodes - nodes % replica if replica else nodes


def up_to_whole(nodes: int, replica: int) -> int:
    """A number of nodes, rounded up to whole replicas."""
    return nodes + -nodes % replica if replica else nodes


def most_in_groups(problem: AllocationProblem, job: JobDemand, nodes: Iterable[str]) -> int:
    """How many of some nodes a job could have that must be in groups.

    That is as many as suit it in the group with the most of them; or, where only its replicas must be in one group
    each, as many as make whole replicas in all groups.
    """
    usable, counts = suitable_nodes(problem, job), dict[GroupPath, int]()
    for name in nodes:
        group = group_of(problem.paths.get(name, ()), job.topology_level)
        if group is not None and name in usable:
            counts[group] = counts.get(group, 0) + 1
    if job.topology is TopologyPreference.REQUIRE_REPLICA:
        return sum(whole(count, job.nodes_per_replica) for count in counts.values())
    return max(counts.values(), default=0)


class _Finder:
    """Finds the groups that jobs may be in."""

    def __init__(self, keys: Sequence[tuple[int, GroupPath]], cells: Sequence[Sequence[str]]) -> None:
        self._keys = keys
        self._sizes = [len(names) for names in cells]
        self._cell_of = {name: cell for cell, names in enumerate(cells) for name in names}
        self._groups: dict[int, dict[GroupPath, list[int]]] = {}

    def options(self, job: JobDemand) -> tuple[GroupOption, ...]:
        """The groups of a job: of one that must be in a single group those that it has nodes in, if it has any."""
        groups, by_replica = self._by_group(job.topology_level), job.topology is TopologyPreference.REQUIRE_REPLICA
        held: dict[GroupPath | None, list[str]] = {}
        for name in job.current_nodes:
            path = self._keys[self._cell_of[name]][1]
            held.setdefault(group_of(path, job.topology_level), []).append(name)
        if not held:
            least = job.nodes_per_replica if by_replica else job.min_nodes
            all_options = (self._option(job, group, cells, ()) for group, cells in groups.items())
            return tuple(option for option in all_options if option.room >= least)
        if by_replica:
            # Those that it has nodes in come first, in the order of these nodes.
            known = [group for group in dict.fromkeys((*held, *groups)) if group is not None]
            options = [self._option(job, group, groups[group], held.get(group, ())) for group in known]
            return (*options, self._as_it_is(None, held[None])) if None in held else tuple(options)
        if len(held) == 1 and (group := next(iter(held))) is not None:
            return (self._option(job, group, groups[group], job.current_nodes),)
        return tuple(self._as_it_is(group, names) for group, names in held.items())

    def _as_it_is(self, group: GroupPath | None, names: Sequence[str]) -> GroupOption:
        """Nodes of a job to which no others come."""
        cells = frozenset(self._cell_of[name] for name in names)
        return GroupOption(group, cells, tuple(names), len(names), grows=False)

    def _option(self, job: JobDemand, group: GroupPath, cells: Sequence[int], held: Sequence[str]) -> GroupOption:
        suited = frozenset(cell for cell in cells if self._keys[cell][0] not in job.unsuitable_kinds)
        room = sum(self._sizes[cell] for cell in suited)
        room += sum(self._cell_of[name] not in suited for name in held)  # it keeps what has come to be unsuitable
        return GroupOption(group, suited, tuple(held), room)

    def _by_group(self, level: int) -> dict[GroupPath, list[int]]:
        if level not in self._groups:
            cells = self._groups[level] = {}
            for cell, (_, path) in enumerate(self._keys):
                if (group := group_of(path, level)) is not None:
                    cells.setdefault(group, []).append(cell)
        return self._groups[level]
