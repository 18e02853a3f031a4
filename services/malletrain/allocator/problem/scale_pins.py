"""Pinned scales: of jobs that the Profiler measures, and of those whose saves fail. They get nodes before the solve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem, Assignment, JobDemand
from malletrain.allocator.problem.group_table import GroupTable, requires_group
from malletrain.allocator.problem.kinds import restrict_kinds
from malletrain.allocator.problem.objective import permitted_sizes, scale_values
from malletrain.allocator.solvers.group_choice import settle_groups
from malletrain.allocator.solvers.kind_flow import can_be_placed
from malletrain.allocator.solvers.placement import place, place_parts


@dataclass(frozen=True)
class ScalePin:
    """The scale that the Profiler asks for, or that a job keeps.

    Attributes:
        nodes: Scale in nodes; 0: the scale that the job has.
        grow: Whether the job may grow to it; otherwise the job keeps at most what it has.
        until: The pin ends at this time, in seconds since the epoch.
    """

    nodes: int
    grow: bool
    until: float


@dataclass(frozen=True)
class PinnedProblem:
    """A problem whose pinned jobs have their nodes.

    Attributes:
        whole: The problem with all jobs and nodes.
        rest: The problem without the pinned jobs and their nodes; it is still to be solved.
        pinned: Nodes of the pinned jobs, by job identifier.
    """

    whole: AllocationProblem
    rest: AllocationProblem
    pinned: Mapping[str, tuple[str, ...]]

    def complete(self, solved: Allocation) -> Allocation:
        """The solution of the whole problem from that of `rest`."""
        if not self.pinned:
            return solved
        nodes_of = {entry.job_id: entry.nodes for entry in solved.assignments} | dict(self.pinned)
        assignments = tuple(Assignment(job.id, nodes_of[job.id]) for job in self.whole.jobs)
        value = sum(
            _value(job, len(self.pinned[job.id]), self.whole) for job in self.whole.jobs if job.id in self.pinned
        )
        return replace(solved, assignments=assignments, objective=solved.objective + value)


def apply_pins(problem: AllocationProblem, pins: Mapping[str, ScalePin]) -> PinnedProblem:
    """Assign the nodes of pinned jobs.

    Args:
        problem: A valid problem.
        pins: By job identifier; pins of jobs that are not in the problem are ignored.
    """
    if not any(job.id in pins for job in problem.jobs):
        return with_pinned(problem, {})
    pool = problem.capacity
    present = {job.id: len(job.current_nodes) for job in problem.jobs}
    sizes = {job.id: permitted_sizes(job, pool).tolist() for job in problem.jobs if job.id in pins}
    counts = _within_limits(problem, pinned_counts(present, sizes, pins, pool))
    grouped = any(map(requires_group, problem.jobs))
    if problem.kinds or grouped:
        counts = _with_suitable_nodes(problem, present, counts)
    wanted = [counts.get(job_id, count) for job_id, count in present.items()]
    parted = settle_groups(GroupTable.of(problem), wanted, as_they_are=True) if grouped else None
    placed = place_parts(parted, problem) if parted is not None else place(problem, wanted)
    pinned = {entry.job_id: entry.nodes for entry in placed if entry.job_id in counts}
    return with_pinned(problem, pinned)


def with_pinned(problem: AllocationProblem, pinned: Mapping[str, tuple[str, ...]]) -> PinnedProblem:
    """The problem whose pinned jobs have these nodes, by job identifier."""
    return PinnedProblem(problem, _without(problem, pinned), pinned)


def pinned_counts(
    present: Mapping[str, int], sizes: Mapping[str, Sequence[int]], pins: Mapping[str, ScalePin], pool: int
) -> dict[str, int]:
    """Nodes of each pinned job.

    A growth for which there are too few free nodes waits. A job that has lost nodes is pinned at the largest permitted
    scale that it still has. A job below its smallest scale is not pinned.

    Args:
        present: Nodes of each job now.
        sizes: Permitted scales in nodes of each pinned job.
        pins: By job identifier; pins of jobs that are not in `present` are ignored.
        pool: Number of nodes.
    """
    within = {
        job_id: _without_growth(count, sizes[job_id], pins[job_id])
        for job_id, count in present.items()
        if job_id in pins
    }
    counts = {job_id: count for job_id, count in within.items() if count is not None}
    used = sum(counts.get(job_id, count) for job_id, count in present.items())
    for job_id, count in list(counts.items()):
        pin, missing = pins[job_id], pins[job_id].nodes - count
        if pin.grow and 0 < missing <= pool - used and pin.nodes in sizes[job_id]:
            counts[job_id] = pin.nodes
            used += missing
    return counts


def _without(problem: AllocationProblem, pinned: Mapping[str, tuple[str, ...]]) -> AllocationProblem:
    if not pinned:
        return problem
    pinned_nodes = {node for nodes in pinned.values() for node in nodes}
    nodes = tuple(node for node in problem.nodes if node not in pinned_nodes)
    return replace(
        problem,
        nodes=nodes,
        kinds=restrict_kinds(problem.kinds, frozenset(nodes)),
        jobs=tuple(job for job in problem.jobs if job.id not in pinned),
        expected_stay_seconds={
            node: seconds for node, seconds in problem.expected_stay_seconds.items() if node not in pinned_nodes
        },
        owner_limits={
            owner: limit - sum(len(pinned[job.id]) for job in problem.jobs if job.id in pinned and job.owner == owner)
            for owner, limit in problem.owner_limits.items()
        },
        max_nodes=None if problem.max_nodes is None else max(0, problem.max_nodes - len(pinned_nodes)),
    )


def _with_suitable_nodes(
    problem: AllocationProblem, present: Mapping[str, int], counts: Mapping[str, int]
) -> dict[str, int]:
    """Nodes of each pinned job, without the growths for which there are too few suitable nodes: these wait."""
    suited = {job_id: min(count, present[job_id]) for job_id, count in counts.items()}
    for job_id, count in counts.items():
        tried = {**suited, job_id: count}
        if _placeable(problem, [tried.get(job.id, present[job.id]) for job in problem.jobs]):
            suited = tried
    return suited


def _placeable(problem: AllocationProblem, counts: Sequence[int]) -> bool:
    """Whether there are suitable nodes for all jobs."""
    if any(map(requires_group, problem.jobs)):
        return settle_groups(GroupTable.of(problem), counts, as_they_are=True) is not None
    return can_be_placed(problem, counts)


def _within_limits(problem: AllocationProblem, counts: Mapping[str, int]) -> dict[str, int]:
    """Nodes of each pinned job, without those that their owner's limit has no room for."""
    remaining = dict(problem.owner_limits)
    within = {}
    for job in problem.jobs:
        if job.id not in counts or counts[job.id] > remaining.get(job.owner, counts[job.id]):
            continue
        within[job.id] = counts[job.id]
        if job.owner in remaining:
            remaining[job.owner] -= counts[job.id]
    return within


def _without_growth(present: int, sizes: Sequence[int], pin: ScalePin) -> int | None:
    """The largest permitted scale within the pin and the present nodes; None where there is none."""
    if present == 0:
        return 0
    wanted = present if pin.nodes == 0 else min(pin.nodes, present)
    return max((size for size in sizes if 0 < size <= wanted), default=None)


def _value(job: JobDemand, count: int, problem: AllocationProblem) -> float:
    scales = scale_values(job, problem)
    index = scales.index(count)
    permitted = index < len(scales.sizes) and scales.sizes[index] == count
    return float(scales.values[index]) if permitted else 0.0
