"""What each size of each job is worth: the objective of BFTrainer (Eq. 16), job by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric


@dataclass(frozen=True)
class Worth:
    """A job's choices.

    Attributes:
        sizes: Permitted sizes in nodes, ascending; 0 first.
        values: Value of each: weight x (T_fwd x O(n) - cost of going there), in metric x seconds.
        costs: Weight x cost of going there, in metric x seconds; the part that `values` is reduced by.
        current: C_j, the present size in nodes; not one of `sizes` after some preemptions.
    """

    sizes: NDArray[np.int64]
    values: NDArray[np.float64]
    costs: NDArray[np.float64]
    current: int

    def index(self, size: int) -> int:
        """Where a permitted size in nodes stands in `sizes`."""
        return int(np.searchsorted(self.sizes, size))

    def useful(self) -> NDArray[np.int64]:
        """Indices of sizes worth more than every smaller one: the best total needs no other."""
        best = np.maximum.accumulate(self.values)
        return np.concatenate(([0], 1 + np.flatnonzero(self.values[1:] > best[:-1]))).astype(np.int64)


def rates(job: JobDemand, sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """O_j in samples/s at sizes in nodes (Eq. 11, 12): linear between points, flat above the last one.

    Sizes above the last point are not permitted to be chosen; a job may still hold more, and is then charged the last
    point's rate.
    """
    points = [point for point in job.curve if point.nodes > 0]
    nodes = [0, *(point.nodes for point in points)]
    return np.asarray(np.interp(sizes, nodes, [0.0, *(point.rate for point in points)]), dtype=np.float64)


def permitted_sizes(job: JobDemand, pool: int) -> NDArray[np.int64]:
    """0 and every permitted size that the pool can hold, ascending (Eq. 3)."""
    largest = min(job.max_nodes, job.curve[-1].nodes, pool)
    if job.permitted_nodes:
        return np.asarray([0, *(size for size in job.permitted_nodes if size <= largest)], dtype=np.int64)
    sizes = np.arange(job.min_nodes - 1, max(largest, job.min_nodes - 1) + 1, dtype=np.int64)
    sizes[0] = 0
    return sizes


def metric_scale(job: JobDemand, metric: ObjectiveMetric) -> float:
    """Factor from samples/s to the objective metric, the weight included."""
    if metric is ObjectiveMetric.SCALING_EFFICIENCY:
        return job.weight / float(rates(job, [1])[0])
    return job.weight


def job_worth(job: JobDemand, problem: AllocationProblem) -> Worth:
    """A job's choices in a problem (derivation in docs/allocation.md).

    `paper`: going from C to n costs R x O(C), with R_up for a growth and R_down for a shrink (Eq. 13-16).
    `stall`: it costs R x O(n): for R seconds of T_fwd, all n nodes stand still.
    """
    sizes = permitted_sizes(job, len(problem.nodes))
    current = len(job.current_nodes)
    stalls = np.where(sizes > current, job.scale_up_seconds, np.where(sizes < current, job.scale_down_seconds, 0.0))
    speed = rates(job, sizes)
    charged = rates(job, [current]) if problem.cost_model is CostModel.PAPER else speed
    scale = metric_scale(job, problem.objective_metric)
    costs = scale * stalls * charged
    return Worth(sizes, scale * problem.forward_seconds * speed - costs, costs, current)


def objective_of(worths: Sequence[Worth], counts: Sequence[int]) -> float:
    """Value of a choice of counts, in metric x seconds."""
    return sum(float(worth.values[worth.index(count)]) for worth, count in zip(worths, counts, strict=True))
