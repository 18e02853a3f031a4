"""Jobs whose scale is not up to the plan while a profile is taken: reserved first, the rest is solved as usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.placement import place
from malletrain.allocator.problem import Allocation, AllocationProblem, Assignment, JobDemand
from malletrain.allocator.worth import job_worth, permitted_sizes


@dataclass(frozen=True)
class Hold:
    """What the Profiler asks for.

    Attributes:
        nodes: Scale in nodes; 0: the scale that the job has.
        grow: Whether the job may grow to it; otherwise it is at most what the job has.
        until: In force before this time, in seconds since the epoch.
    """

    nodes: int
    grow: bool
    until: float


@dataclass(frozen=True)
class Reserved:
    """A problem in two parts.

    Attributes:
        whole: The problem.
        rest: What remains to be solved.
        held: Nodes of the held jobs, by job.
    """

    whole: AllocationProblem
    rest: AllocationProblem
    held: Mapping[str, tuple[str, ...]]

    def complete(self, solved: Allocation) -> Allocation:
        """The answer to the whole problem, from that to the rest."""
        found = {entry.job_id: entry.nodes for entry in solved.assignments} | dict(self.held)
        assignments = tuple(Assignment(job.id, found[job.id]) for job in self.whole.jobs)
        held = sum(_value(job, len(self.held[job.id]), self.whole) for job in self.whole.jobs if job.id in self.held)
        return replace(solved, assignments=assignments, objective=solved.objective + held)


def reserve(problem: AllocationProblem, holds: Mapping[str, Hold]) -> Reserved:
    """Give held jobs their nodes.

    Args:
        problem: A valid problem.
        holds: By job; others may be named.
    """
    pool = len(problem.nodes)
    present = {job.id: len(job.current_nodes) for job in problem.jobs}
    sizes = {job.id: permitted_sizes(job, pool).tolist() for job in problem.jobs if job.id in holds}
    counts = held_counts(present, sizes, holds, pool)
    moved = place(problem, [counts.get(job_id, count) for job_id, count in present.items()])
    held = {entry.job_id: entry.nodes for entry in moved if entry.job_id in counts}
    return Reserved(problem, _without(problem, held), held)


def held_counts(
    present: Mapping[str, int], sizes: Mapping[str, Sequence[int]], holds: Mapping[str, Hold], pool: int
) -> dict[str, int]:
    """Nodes of each held job.

    A hold never asks for more than there is: a growth for which free nodes do not suffice waits, and a job that has
    lost nodes is held at the largest permitted scale below. A job below its smallest scale is not held.

    Args:
        present: Nodes of each job now.
        sizes: Permitted scales of each job that is held, in nodes.
        holds: By job; others may be named.
        pool: Number of nodes.
    """
    kept = {job_id: _kept(present[job_id], sizes[job_id], holds[job_id]) for job_id in present if job_id in holds}
    counts = {job_id: count for job_id, count in kept.items() if count is not None}
    used = sum(counts.get(job_id, count) for job_id, count in present.items())
    for job_id, count in list(counts.items()):
        hold, missing = holds[job_id], holds[job_id].nodes - count
        if hold.grow and 0 < missing <= pool - used and hold.nodes in sizes[job_id]:
            counts[job_id] = hold.nodes
            used += missing
    return counts


def _without(problem: AllocationProblem, held: Mapping[str, tuple[str, ...]]) -> AllocationProblem:
    if not held:
        return problem
    taken = {node for nodes in held.values() for node in nodes}
    return replace(
        problem,
        nodes=tuple(node for node in problem.nodes if node not in taken),
        jobs=tuple(job for job in problem.jobs if job.id not in held),
        expected_stay_seconds={
            node: seconds for node, seconds in problem.expected_stay_seconds.items() if node not in taken
        },
    )


def _kept(present: int, sizes: Sequence[int], hold: Hold) -> int | None:
    """The largest permitted scale that is held without a growth; None where there is none."""
    if present == 0:
        return 0
    wanted = present if hold.nodes == 0 else min(hold.nodes, present)
    return max((size for size in sizes if 0 < size <= wanted), default=None)


def _value(job: JobDemand, count: int, problem: AllocationProblem) -> float:
    worth = job_worth(job, problem)
    place_of = worth.index(count)
    return float(worth.values[place_of]) if place_of < len(worth.sizes) and worth.sizes[place_of] == count else 0.0
