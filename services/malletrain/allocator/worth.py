"""What each size of each job is worth: the objective of BFTrainer (Eq. 16), job by job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Choices:
    """What a job can choose from, whatever it holds at the moment.

    Attributes:
        sizes: Permitted sizes in nodes, ascending; 0 first.
        rates: What a second at each is worth, in weighted metric.
        held_rates: The same at 0, 1, 2.. nodes, permitted or not: what is charged where the old rate counts.
        scale_up_seconds: R_up, stall of a growth in seconds.
        scale_down_seconds: R_down, stall of a shrink in seconds.
        stalls: Stalls in seconds known for single pairs of scales: by the scale before, then by the one after.
    """

    sizes: NDArray[np.int64]
    rates: NDArray[np.float64]
    held_rates: NDArray[np.float64]
    scale_up_seconds: float
    scale_down_seconds: float
    stalls: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    def known_stalls(self, current: int) -> list[tuple[int, float]]:
        """Of the rescales from `current` nodes whose stall is known: where the size stands, and seconds."""
        pairs = self.stalls.get(current, {}).items()
        places = ((int(np.searchsorted(self.sizes, to)), to, seconds) for to, seconds in pairs)
        return [(at, seconds) for at, to, seconds in places if at < len(self.sizes) and self.sizes[at] == to]

    def worth(self, current: int, forward_seconds: float, cost_model: CostModel) -> Worth:
        """What the choices come to for a job that holds `current` nodes (derivation in docs/allocation.md).

        `paper`: going from C to n costs R x O(C), with R_up for a growth and R_down for a shrink (Eq. 13-16).
        `stall`: it costs R x O(n): for R seconds of T_fwd, all n nodes stand still. Where the stall from C to n itself
        is known, it stands for R.
        """
        up, down = self.scale_up_seconds, self.scale_down_seconds
        stalls = np.where(self.sizes > current, up, np.where(self.sizes < current, down, 0.0))
        if cost_model is CostModel.STALL:
            for place, seconds in self.known_stalls(current):
                stalls[place] = seconds
        held = self.held_rates[min(current, len(self.held_rates) - 1)]
        costs = stalls * (held if cost_model is CostModel.PAPER else self.rates)
        return Worth(self.sizes, forward_seconds * self.rates - costs, costs, current)


def choices_of(job: JobDemand, metric: ObjectiveMetric, pool: int) -> Choices:
    """A job's choices within a pool of nodes."""
    scale = metric_scale(job, metric)
    sizes = permitted_sizes(job, pool)
    held = np.arange(min(job.curve[-1].nodes, max(pool, len(job.current_nodes))) + 1)
    up, down = job.scale_up_seconds, job.scale_down_seconds
    stalls: dict[int, dict[int, float]] = {}
    for stall in job.stalls:
        stalls.setdefault(stall.from_nodes, {})[stall.to_nodes] = stall.seconds
    return Choices(sizes, scale * rates(job, sizes), scale * rates(job, held), up, down, stalls)


def job_worth(job: JobDemand, problem: AllocationProblem) -> Worth:
    """A job's choices in a problem."""
    choices = choices_of(job, problem.objective_metric, len(problem.nodes))
    return choices.worth(len(job.current_nodes), problem.forward_seconds, problem.cost_model)


def objective_of(worths: Sequence[Worth], counts: Sequence[int]) -> float:
    """Value of a choice of counts, in metric x seconds."""
    return sum(float(worth.values[worth.index(count)]) for worth, count in zip(worths, counts, strict=True))
