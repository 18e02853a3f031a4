"""Which nodes of which kind each job gets, where not all nodes suit all jobs: a transport problem. Pure.

Nodes of a kind suit the same jobs, so only numbers of nodes per kind matter. A job that grows keeps its nodes and takes
more of kinds that suit it; one that shrinks keeps some of its nodes. Given how many nodes each job gets, that is a flow
from jobs to kinds: it is found by augmenting paths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.allocator.problem.allocation_problem import AllocationProblem


@dataclass(frozen=True)
class KindTable:
    """A problem's nodes and jobs by kind. The last kind is that of the nodes that suit all jobs.

    Attributes:
        kind_of: Kind of each node.
        capacity: Number of nodes of each kind.
        suitable: Kinds that suit each job.
        held: Nodes of each kind that each job holds.
        options: Kinds of each group that a job's nodes may be in, by the job's index, of jobs whose nodes must all be
            in one of several groups, or all nodes of each of its replicas. Only `milp_kinds` knows of them.
        replicas: Nodes of each replica, of those jobs whose replicas must be in one group each.
    """

    kind_of: dict[str, int]
    capacity: tuple[int, ...]
    suitable: tuple[frozenset[int], ...]
    held: tuple[tuple[int, ...], ...]
    options: Mapping[int, tuple[frozenset[int], ...]] = field(default_factory=dict)
    replicas: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: AllocationProblem) -> KindTable:
        """The table of a valid problem."""
        last = len(problem.kinds)
        kind_of = dict.fromkeys(problem.nodes, last)
        kind_of.update((name, kind) for kind, entry in enumerate(problem.kinds) for name in entry.nodes)
        capacity, held = [0] * (last + 1), [[0] * (last + 1) for _ in problem.jobs]
        for name in problem.nodes:
            capacity[kind_of[name]] += 1
        for job, own in zip(problem.jobs, held, strict=True):
            for name in job.current_nodes:
                own[kind_of[name]] += 1
        everything = frozenset(range(last + 1))
        suitable = tuple(everything.difference(job.unsuitable_kinds) for job in problem.jobs)
        return cls(kind_of, tuple(capacity), suitable, tuple(map(tuple, held)))

    def suitable_nodes(self, job: int) -> int:
        """How many nodes a job could have at most: those that suit it, and those that it holds."""
        return sum(
            count if kind in self.suitable[job] else self.held[job][kind] for kind, count in enumerate(self.capacity)
        )

    def limits(self, job: int) -> list[int]:
        """Most nodes of each kind that a job could take."""
        return [count if kind in self.suitable[job] else 0 for kind, count in enumerate(self.capacity)]


@dataclass
class KindFlow:
    """Nodes of each kind that jobs take, or keep where they shrink.

    Attributes:
        limits: Most nodes of each kind for each job that moves, by the job's index.
        wanted: How many nodes each of them is to get in all.
        spare: Nodes of each kind that are left.
        taken: Nodes of each kind that each of them has in this flow.
    """

    limits: dict[int, list[int]]
    wanted: dict[int, int]
    spare: list[int]
    taken: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: KindTable, counts: Sequence[int]) -> KindFlow | None:
        """A flow that gives every job its number of nodes; None where there is none."""
        spare, limits, wanted = list(table.capacity), dict[int, list[int]](), dict[int, int]()
        for job, (held, count) in enumerate(zip(table.held, counts, strict=True)):
            have = sum(held)
            if count < have:
                limits[job], wanted[job] = list(held), count
                continue
            for kind, number in enumerate(held):
                spare[kind] -= number
            if count > have:
                limits[job], wanted[job] = table.limits(job), count - have
        flow = cls(limits, wanted, spare, {job: [0] * len(spare) for job in limits})
        # Those with the fewest kinds first, so that little has to be moved afterwards.
        order = sorted(limits, key=lambda job: (sum(limit > 0 for limit in limits[job]), job))
        return flow if all(flow._fill(job) for job in order) else None

    def _fill(self, job: int) -> bool:
        return self._give_more(job, self.wanted[job]) == self.wanted[job]

    def _give_more(self, job: int, max_nodes: int) -> int:
        """Give a job more nodes, at most so many, without taking any from others; returns how many."""
        missing, own, limits = max_nodes, self.taken[job], self.limits[job]
        for kind in sorted(range(len(self.spare)), key=lambda kind: -self.spare[kind]):
            number = min(missing, limits[kind] - own[kind], self.spare[kind])
            if number > 0:
                own[kind] += number
                self.spare[kind] -= number
                missing -= number
        while missing:
            starts = [kind for kind, limit in enumerate(limits) if own[kind] < limit]
            moved = self._move(job, starts, missing)
            if not moved:
                break
            missing -= moved
        return max_nodes - missing

    def add(self, job: int, limits: list[int], max_nodes: int) -> int:
        """Give a job that was not part of the flow as many nodes as there are for it, at most so many."""
        self.limits[job], self.taken[job] = limits, [0] * len(self.spare)
        self.wanted[job] = self._give_more(job, max_nodes)
        return self.wanted[job]

    def take_back(self, job: int, number: int) -> None:
        """Take nodes from a job again."""
        own = self.taken[job]
        self.wanted[job] -= number
        for kind, count in enumerate(own):
            less = min(count, number)
            own[kind] -= less
            self.spare[kind] += less
            number -= less

    def _move(self, job: int, starts: Sequence[int], max_nodes: int) -> int:
        """Give a job more nodes of one of some kinds, by having others take nodes of another kind instead.

        Returns:
            How many more it has, at most `max_nodes`; 0: there is no way.
        """
        path = self._path(starts)
        if path is None:
            return 0
        kinds, movers = path
        first, last = kinds[0], kinds[-1]
        number = min(max_nodes, self.limits[job][first] - self.taken[job][first], self.spare[last])
        for place, mover in enumerate(movers):
            own, limits = self.taken[mover], self.limits[mover]
            number = min(number, own[kinds[place]], limits[kinds[place + 1]] - own[kinds[place + 1]])
        for place, mover in enumerate(movers):
            self.taken[mover][kinds[place]] -= number
            self.taken[mover][kinds[place + 1]] += number
        self.taken[job][first] += number
        self.spare[last] -= number
        return number

    def _path(self, starts: Sequence[int]) -> tuple[list[int], list[int]] | None:
        """The shortest way from one of some kinds to one with nodes to spare: kinds, and who moves between them."""
        before: dict[int, tuple[int, int] | None] = dict.fromkeys(starts)
        queue = deque(starts)
        while queue:
            kind = queue.popleft()
            if self.spare[kind] > 0:
                return _way(before, kind)
            for mover, own in self.taken.items():
                if not own[kind]:
                    continue
                limits = self.limits[mover]
                for other, limit in enumerate(limits):
                    if other not in before and own[other] < limit:
                        before[other] = (kind, mover)
                        queue.append(other)
        return None

    def take_node(self, job: int, kind: int) -> bool:
        """Settle that a job gets a node of a kind, if all others can still get theirs.

        The node, and one of those that the job wanted, are no longer part of the flow.
        """
        if not self.wanted[job] or self.limits[job][kind] < 1:
            return False
        own = self.taken[job]
        if not own[kind] and not self._exchange(job, kind):
            return False
        own[kind] -= 1
        self.limits[job][kind] -= 1
        self.wanted[job] -= 1
        return True

    def _exchange(self, job: int, kind: int) -> bool:
        """Have a job take a node of a kind rather than of another one."""
        own = self.taken[job]
        for other in range(len(own)):
            if own[other]:
                own[other] -= 1
                self.spare[other] += 1
                if self._move(job, (kind,), 1):
                    return True
                own[other] += 1
                self.spare[other] -= 1
        return False


def _way(before: dict[int, tuple[int, int] | None], last: int) -> tuple[list[int], list[int]]:
    kinds, movers = [last], list[int]()
    while (step := before[kinds[-1]]) is not None:
        kinds.append(step[0])
        movers.append(step[1])
    return kinds[::-1], movers[::-1]


def can_be_placed(problem: AllocationProblem, counts: Sequence[int]) -> bool:
    """Whether there are suitable nodes for all jobs.

    Args:
        problem: A valid problem.
        counts: Number of nodes of each job; their sum is at most the number of nodes.
    """
    return not problem.kinds or KindFlow.of(KindTable.of(problem), counts) is not None


def placeable_counts(table: KindTable, sizes: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
    """Numbers of nodes for which there are suitable ones: for each job in turn the largest within what is asked.

    Args:
        table: The problem's nodes and jobs by kind.
        sizes: Permitted numbers of nodes of each job, ascending, the first 0.
        counts: What is asked for each job; permitted, and together at most as many as there are nodes.
    """
    have = [sum(held) for held in table.held]
    permitted = [_largest(own, min(count, present)) for own, count, present in zip(sizes, counts, have, strict=True)]
    grows = [job for job, count in enumerate(counts) if count > have[job]]
    # What a job holds counts as its own until it is known whether it grows.
    growing = frozenset(grows)
    flow = KindFlow.of(table, [have[job] if job in growing else count for job, count in enumerate(permitted)])
    assert flow is not None, "jobs can keep what they hold"
    for job in grows:
        added = flow.add(job, table.limits(job), counts[job] - have[job])
        size = _largest(sizes[job], have[job] + added)
        flow.take_back(job, added - max(0, size - have[job]))
        permitted[job] = size
    return permitted


def _largest(sizes: Sequence[int], max_nodes: int) -> int:
    return max(size for size in sizes if size <= max_nodes)
