"""What a node is worth in a plan: to each job, and to all of them together. Pure.

From the plan's own problem, by the Allocator's own functions: the values of scales (docs/allocation.md) and the exact
choice on counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.problem.group_table import requires_group
from malletrain.allocator.problem.objective import ScaleValues, objective_of, scale_values
from malletrain.allocator.solvers.choice_table import best_counts, groups_of


@dataclass(frozen=True)
class JobValue:
    """What nodes are worth to one job, in the objective's unit (weighted samples within T_fwd).

    Attributes:
        job_id: The job.
        nodes: Its scale in the plan.
        one_more: Gain from the next larger permitted scale, per node; None where there is none.
        one_fewer: Loss from the next smaller one, per node; None on 0 nodes.
    """

    job_id: str
    nodes: int
    one_more: float | None
    one_fewer: float | None


@dataclass(frozen=True)
class PlanValues:
    """What nodes are worth in a plan.

    Attributes:
        jobs: In the order of the problem.
        next_node: What one more node would add to the objective: the price of a node. None where not all nodes suit all
            jobs: `explain` tells it then.
        last_node: What the objective would lose with one node fewer; None without nodes, and where not all suit all.
    """

    jobs: tuple[JobValue, ...]
    next_node: float | None
    last_node: float | None


def values_of(problem: AllocationProblem, after: Mapping[str, int]) -> PlanValues:
    """What nodes are worth.

    Args:
        problem: The problem that was solved; valid.
        after: Nodes that each job got, by identifier.
    """
    per_job = [scale_values(job, problem) for job in problem.jobs]
    # With one node more, by a name that no other has.
    wide = replace(problem, nodes=(*problem.nodes, max(problem.nodes, default="") + "+"))
    wider = [scale_values(job, wide) for job in wide.jobs]
    jobs = tuple(_of_job(job.id, values, after.get(job.id, 0)) for job, values in zip(problem.jobs, wider, strict=True))
    if problem.kinds or any(map(requires_group, problem.jobs)):
        return PlanValues(jobs, None, None)
    groups, pool = groups_of(problem), problem.capacity
    now = objective_of(per_job, best_counts(per_job, pool, groups))
    more = objective_of(wider, best_counts(wider, wide.capacity, groups))
    fewer = problem.within_limit(len(problem.nodes) - 1)
    last = now - objective_of(per_job, best_counts(per_job, fewer, groups)) if problem.nodes else None
    return PlanValues(jobs, max(0.0, more - now), last)


def _of_job(job_id: str, values: ScaleValues, nodes: int) -> JobValue:
    place = int(np.searchsorted(values.sizes, nodes))
    if place >= len(values.sizes) or values.sizes[place] != nodes:
        return JobValue(job_id, nodes, None, None)
    return JobValue(
        job_id,
        nodes,
        _step(values, place, place + 1) if place + 1 < len(values.sizes) else None,
        _step(values, place - 1, place) if place else None,
    )


def _step(values: ScaleValues, lower: int, upper: int) -> float:
    """Difference in value between two scales, per node."""
    return float(values.values[upper] - values.values[lower]) / float(values.sizes[upper] - values.sizes[lower])
