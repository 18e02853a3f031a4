"""The objective of BFTrainer (Eq. 16): what each permitted scale of a job adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric
from malletrain.common.memory_by_job import MemoryByJob

START_SHARE = 0.01
"""Of T_fwd, for which a start counts at least: where nobody else has a use for nodes, any start is better than none."""


def max_start_seconds(forward_seconds: float) -> float:
    """The most that the stall and the boot of a start are charged, in seconds; not with the `paper` cost model."""
    return (1.0 - START_SHARE) * forward_seconds


def trains_on(sizes: NDArray[np.int64], current: int) -> bool:
    """Whether a job trains on the nodes that it holds: their number is a permitted scale above 0.

    After a preemption they may be too few. What follows then is a start.

    Args:
        sizes: Permitted scales in nodes, ascending from 0.
        current: Nodes that it holds.
    """
    place = int(np.searchsorted(sizes, current))
    return current > 0 and place < len(sizes) and int(sizes[place]) == current


@dataclass(frozen=True)
class ScaleValues:
    """The permitted scales of one job with their values, given the nodes that it holds now. Arrays of shape (scales,).

    Attributes:
        sizes: Permitted scales in nodes, ascending; the first is 0.
        values: weight x (T_fwd x O(n) - cost of the rescale), in metric x seconds.
        costs: weight x cost of the rescale, in metric x seconds; already subtracted from `values`.
        current: C_j, the present scale in nodes; after a preemption it may be missing from `sizes`.
    """

    sizes: NDArray[np.int64]
    values: NDArray[np.float64]
    costs: NDArray[np.float64]
    current: int

    def index(self, size: int) -> int:
        """Index in `sizes` of a permitted scale in nodes."""
        return int(np.searchsorted(self.sizes, size))

    def useful(self) -> NDArray[np.int64]:
        """Indices of the scales that are worth more than every smaller scale; an optimum exists among these."""
        best = np.maximum.accumulate(self.values)
        return np.concatenate(([0], 1 + np.flatnonzero(self.values[1:] > best[:-1]))).astype(np.int64)


def rates(job: JobDemand, sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """O_j, the throughput in samples/s (Eq. 11, 12).

    The curve is linear between its points and constant above the last one. Scales above the last point are not
    permitted, but a job may hold more nodes than that; the last point's rate then counts.

    Args:
        sizes: Scales in nodes.

    Returns:
        Array of the same length as `sizes`.
    """
    points = [point for point in job.curve if point.nodes > 0]
    nodes = [0, *(point.nodes for point in points)]
    return np.asarray(np.interp(sizes, nodes, [0.0, *(point.rate for point in points)]), dtype=np.float64)


def worths(job: JobDemand, sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """What the throughput at scales counts for, in samples/s, by the job's value curve (`malletrain.model.job_value`).

    A user's own metric is thus one more table over the scales: no solver knows of its form. Where the rate on one node
    is 0, there is no speedup, and rates count for themselves.

    Args:
        sizes: Scales in nodes.

    Returns:
        Array of the same length as `sizes`.
    """
    own = rates(job, sizes)
    value = job.value
    if value.linear:
        return own
    if value.efficiency is not None:
        last = job.curve[-1].nodes  # a job that holds more trains no faster, by its curve, and learns no less
        return own * np.asarray([value.efficiency.at(min(int(nodes), last)) for nodes in sizes], dtype=np.float64)
    if value.needed_rate:
        return own + (value.urgency - 1.0) * np.minimum(own, value.needed_rate)
    alone = float(rates(job, [1])[0])
    if alone <= 0:
        return own
    if value.points:
        at = [0.0, *(alone * point.speedup for point in value.points)]
        return np.asarray(np.interp(own, at, [0.0, *(alone * point.value for point in value.points)]))
    # alone x speedup^exponent, without the speedup: that is infinite where the rate on one node is next to nothing.
    return np.asarray(alone ** (1.0 - value.exponent) * own**value.exponent, dtype=np.float64)


def permitted_sizes(job: JobDemand, pool: int) -> NDArray[np.int64]:
    """0 and every permitted scale of at most `pool` nodes, ascending (Eq. 3)."""
    largest = min(job.max_nodes, job.curve[-1].nodes, pool)
    if job.permitted_nodes:
        return np.asarray([0, *(size for size in job.permitted_nodes if size <= largest)], dtype=np.int64)
    sizes = np.arange(job.min_nodes - 1, max(largest, job.min_nodes - 1) + 1, dtype=np.int64)
    sizes[0] = 0
    return sizes


def metric_scale(job: JobDemand, metric: ObjectiveMetric) -> float:
    """Factor that turns samples/s into the objective's metric, weight included."""
    if metric is ObjectiveMetric.SCALING_EFFICIENCY:
        return job.weight / job.unit_rate
    return job.weight


@dataclass(frozen=True)
class ScaleRates:
    """The permitted scales of one job with their rates: the part of the objective that no rescale changes.

    Attributes:
        sizes: Permitted scales in nodes, ascending, shape (scales,); the first is 0.
        rates: Weighted metric per second at each of them by the job's value curve, shape (scales,).
        held_rates: Weighted metric per second on 0, 1, 2, … nodes, permitted or not, shape (largest number of nodes
            that the job can hold + 1,). The `paper` cost model charges these.
        scale_up_seconds: R_up, stall of a growth in seconds.
        scale_down_seconds: R_down, stall of a shrink in seconds.
        stalls: Stalls in seconds that were measured for a pair of scales: scale before → scale after → seconds.
        boot_seconds: How long new workers boot before a growth, in seconds.
    """

    sizes: NDArray[np.int64]
    rates: NDArray[np.float64]
    held_rates: NDArray[np.float64]
    scale_up_seconds: float
    scale_down_seconds: float
    stalls: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    boot_seconds: float = 0.0

    def known_stalls(self, current: int) -> list[tuple[int, float]]:
        """Measured stalls of the rescales from `current` nodes: pairs of an index in `sizes` and seconds."""
        pairs = self.stalls.get(current, {}).items()
        places = ((int(np.searchsorted(self.sizes, to)), to, seconds) for to, seconds in pairs)
        return [(at, seconds) for at, to, seconds in places if at < len(self.sizes) and self.sizes[at] == to]

    def values_from(self, current: int, forward_seconds: float, cost_model: CostModel) -> ScaleValues:
        """The values for a job that holds `current` nodes (derivation in docs/allocation.md).

        `paper`: a rescale from C to n nodes costs R x O(C), with R_up for a growth and R_down for a shrink (Eq. 13-16).
        `stall`: it costs R x O(n), since all n nodes stand still for R of the T_fwd seconds. A stall that was measured
        from C to n replaces R. A growth also costs boot x (O(n) - O(C)): it begins that much later. A start costs
        (R + boot) x O(n), and at most all of T_fwd but START_SHARE of it.

        Args:
            current: C_j in nodes.
            forward_seconds: T_fwd in seconds.
            cost_model: How a rescale is charged.
        """
        up, down = self.scale_up_seconds, self.scale_down_seconds
        stalls = np.where(self.sizes > current, up, np.where(self.sizes < current, down, 0.0))
        if cost_model is CostModel.STALL:
            for place, seconds in self.known_stalls(current):
                stalls[place] = seconds
        held = self.held_rates[min(current, len(self.held_rates) - 1)]
        costs = stalls * (held if cost_model is CostModel.PAPER else self.rates)
        if cost_model is CostModel.STALL and not trains_on(self.sizes, current):
            whole = np.minimum(stalls + self.boot_seconds, max_start_seconds(forward_seconds))
            costs = np.where(self.sizes > current, whole * self.rates, costs)
        elif cost_model is CostModel.STALL and self.boot_seconds > 0:
            costs = costs + np.where(self.sizes > current, self.boot_seconds * (self.rates - held), 0.0)
        return ScaleValues(self.sizes, forward_seconds * self.rates - costs, costs, current)


_RateArrays = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
_remembered_arrays: MemoryByJob[_RateArrays] = MemoryByJob()
_remembered: MemoryByJob[ScaleRates] = MemoryByJob()


def scale_rates(job: JobDemand, metric: ObjectiveMetric, pool: int) -> ScaleRates:
    """The permitted scales of a job within a pool of so many nodes, with their rates."""
    last = job.curve[-1].nodes
    largest, max_held = min(job.max_nodes, last, pool), min(last, max(pool, len(job.current_nodes)))
    return _remembered.value(job.id, (job, metric, largest, max_held), lambda: _made_rates(job, metric, pool))


def _made_rates(job: JobDemand, metric: ObjectiveMetric, pool: int) -> ScaleRates:
    last = job.curve[-1].nodes
    largest, max_held = min(job.max_nodes, last, pool), min(last, max(pool, len(job.current_nodes)))
    terms = job.curve, job.permitted_nodes, job.min_nodes, job.weight, job.value, metric, largest, max_held

    def arrays() -> _RateArrays:
        sizes = permitted_sizes(job, pool)
        held_rates = metric_scale(job, metric) * worths(job, np.arange(max_held + 1))
        rates = sizes, held_rates[sizes], held_rates  # no permitted scale is above `max_held`
        for array in rates:
            array.flags.writeable = False
        return rates

    stalls: dict[int, dict[int, float]] = {}
    for stall in job.stalls:
        stalls.setdefault(stall.from_nodes, {})[stall.to_nodes] = stall.seconds
    up, down = job.scale_up_seconds, job.scale_down_seconds
    return ScaleRates(*_remembered_arrays.value(job.id, terms, arrays), up, down, stalls, job.boot_seconds)


def scale_values(job: JobDemand, problem: AllocationProblem) -> ScaleValues:
    """The permitted scales of one of a problem's jobs, with their values."""
    choices = scale_rates(job, problem.objective_metric, problem.capacity)
    return choices.values_from(len(job.current_nodes), problem.forward_seconds, problem.cost_model)


def objective_of(per_job: Sequence[ScaleValues], counts: Sequence[int]) -> float:
    """The objective of one scale per job (Eq. 16), in metric x seconds."""
    return sum(float(job.values[job.index(count)]) for job, count in zip(per_job, counts, strict=True))
