"""The permitted scales of all jobs in flat arrays, and the exact choice of one scale per job. Pure.

The table does not depend on what the jobs hold, so that it is built once and used for many decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel
from malletrain.allocator.problem.objective import ScaleRates, ScaleValues, max_start_seconds, scale_rates
from malletrain.allocator.solvers import table_arrays
from malletrain.allocator.solvers.knapsack import TIE, Floats, Ints, best_places
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup, best_places_within, owner_groups
from malletrain.allocator.solvers.reduction import maybe_optimal
from malletrain.runtime.jit import jit

_SMALL = 8_000_000
"""Steps (scales of all jobs x nodes) up to which the dynamic program on all scales is faster than reducing first."""
NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class ObjectiveParameters:
    """Parameters of the objective.

    Attributes:
        forward_seconds: T_fwd in seconds.
        cost_model: How a rescale is charged.
        max_change: Most nodes by which a job may change in one step; a stop is always permitted.
    """

    forward_seconds: float
    cost_model: CostModel
    max_change: int = NO_LIMIT


@dataclass(frozen=True)
class Choice:
    """The chosen scale of each job.

    Attributes:
        counts: Nodes of each job, shape (jobs,).
        objective: Their total value, in weighted metric x seconds (Eq. 16).
    """

    counts: Ints
    objective: float


@dataclass(frozen=True)
class ChoiceTable:
    """The permitted scales of several jobs, one job after the other in flat arrays.

    Attributes:
        starts: Index of each job's first scale, and the number of all scales; shape (jobs + 1,).
        sizes: Permitted scales in nodes, shape (scales of all jobs,).
        rates: Weighted metric per second at each of them, same shape.
        held_starts: As `starts`, for `held_rates`.
        held_rates: Weighted metric per second of each job on 0, 1, 2, … nodes.
        up_seconds: R_up of each job in seconds, shape (jobs,).
        down_seconds: R_down of each job in seconds, shape (jobs,).
        boot_seconds: How long each job's new workers boot before a growth, in seconds, shape (jobs,).
        measured: The jobs themselves where any of them has stalls measured for pairs of scales; else empty.
    """

    starts: Ints
    sizes: Ints
    rates: Floats
    held_starts: Ints
    held_rates: Floats
    up_seconds: Floats
    down_seconds: Floats
    boot_seconds: Floats
    measured: Sequence[ScaleRates]

    @classmethod
    def of(cls, jobs: Sequence[ScaleRates]) -> ChoiceTable:
        """The table of some jobs; ties go to earlier ones."""
        return cls(
            _starts([len(job.sizes) for job in jobs]),
            np.concatenate([np.zeros(0, np.int64), *(job.sizes for job in jobs)]),
            np.concatenate([np.zeros(0), *(job.rates for job in jobs)]),
            _starts([len(job.held_rates) for job in jobs]),
            np.concatenate([np.zeros(0), *(job.held_rates for job in jobs)]),
            np.asarray([job.scale_up_seconds for job in jobs], dtype=np.float64),
            np.asarray([job.scale_down_seconds for job in jobs], dtype=np.float64),
            np.asarray([job.boot_seconds for job in jobs], dtype=np.float64),
            tuple(jobs) if any(job.stalls for job in jobs) else (),
        )

    def choose(
        self,
        currents: Sequence[int],
        pool: int,
        parameters: ObjectiveParameters,
        groups: Sequence[OwnerGroup] = (),
        weights: Sequence[float] = (),
    ) -> Choice:
        """The choice of the largest objective; `knapsack` says how ties are broken.

        Args:
            currents: Nodes that each job holds now.
            pool: Nodes to hand out, held ones included.
            parameters: Parameters of the objective.
            groups: Owners with a limit.
            weights: Factors of each job's value besides the weight in the table; empty: 1.
        """
        held = np.asarray(currents, dtype=np.int64)
        if not len(held):
            return Choice(held, 0.0)  # and nothing has to be compiled
        values = values_of_scales(
            self.starts,
            self.sizes,
            self.rates,
            self.held_starts,
            self.held_rates,
            self.up_seconds,
            self.down_seconds,
            self.boot_seconds,
            held,
            parameters.forward_seconds,
            max_start_seconds(parameters.forward_seconds),
            parameters.cost_model is CostModel.PAPER,
            parameters.max_change,
            self._measured_stalls(currents, parameters.cost_model),
        )
        if len(weights):
            values *= np.repeat(np.asarray(weights, dtype=np.float64), np.diff(self.starts))
        places = best_of(self.starts, self.sizes, values, held, pool, groups)
        return Choice(self.sizes[places], float(values[places].sum()))

    def _measured_stalls(self, currents: Sequence[int], cost_model: CostModel) -> Floats:
        """Seconds by scale, NaN where R_up or R_down holds; empty where that is the case everywhere."""
        if not self.measured or cost_model is CostModel.PAPER:
            return np.zeros(0)
        known = np.full(len(self.sizes), np.nan)
        for first, job, current in zip(self.starts.tolist(), self.measured, currents, strict=False):
            for place, seconds in job.known_stalls(current):
                known[first + place] = seconds
        return known


def choose(problem: AllocationProblem) -> Choice:
    """The optimum of a valid problem, by dynamic programming. Only the pool and owners' limits constrain the jobs."""
    pool = problem.capacity
    table = ChoiceTable.of([scale_rates(job, problem.objective_metric, pool) for job in problem.jobs])
    currents = [len(job.current_nodes) for job in problem.jobs]
    parameters = ObjectiveParameters(problem.forward_seconds, problem.cost_model)
    return table.choose(currents, pool, parameters, groups_of(problem))


def groups_of(problem: AllocationProblem) -> tuple[OwnerGroup, ...]:
    """The owners with a limit who have jobs in a problem."""
    return owner_groups([job.owner for job in problem.jobs], problem.owner_limits)


def best_counts(per_job: Sequence[ScaleValues], pool: int, groups: Sequence[OwnerGroup] = ()) -> list[int]:
    """The optimum by dynamic programming, from values that are known already.

    Args:
        per_job: The jobs; ties go to earlier ones.
        pool: Number of nodes, at least 0.
        groups: Owners with a limit.

    Returns:
        Nodes of each job; their sum is at most `pool`.
    """
    starts = np.cumsum([0, *(len(job.sizes) for job in per_job)])
    sizes = np.concatenate([np.zeros(0, np.int64), *(job.sizes for job in per_job)])
    values = np.concatenate([np.zeros(0), *(job.values for job in per_job)])
    currents = np.asarray([job.current for job in per_job], dtype=np.int64)
    return [int(size) for size in sizes[best_of(starts, sizes, values, currents, pool, groups)]]


def present_counts(per_job: Sequence[ScaleValues], pool: int, groups: Sequence[OwnerGroup] = ()) -> list[int]:
    """The present scales in nodes; 0 for jobs whose scale is no longer permitted, or beyond a limit."""
    counts, free = list[int](), pool
    for scales in per_job:
        counts.append(scales.current if scales.current in scales.sizes and scales.current <= free else 0)
        free -= counts[-1]
    for group in groups:
        remaining = group.limit
        for job in group.jobs:
            counts[job] = counts[job] if counts[job] <= remaining else 0
            remaining -= counts[job]
    return counts


def best_of(
    starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int, groups: Sequence[OwnerGroup] = ()
) -> Ints:
    """Index of each job's best scale; a large problem is reduced first."""
    for group in groups:
        if len(group.jobs) == len(currents):  # all jobs are one owner's: its limit is that of the pool
            return best_of(starts, sizes, values, currents, min(pool, group.limit))
    places = _best_without_limits(starts, sizes, values, currents, pool)
    if all(group.keeps(sizes[places]) for group in groups):
        return places
    return best_places_within(starts, sizes, values, currents, pool, groups)


def _best_without_limits(starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int) -> Ints:
    if len(sizes) * pool <= _SMALL:
        return best_places(starts, sizes, values, currents, pool, TIE)
    return best_reduced_places(starts, sizes, values, currents, pool)


def best_reduced_places(starts: Ints, sizes: Ints, values: Floats, currents: Ints, pool: int) -> Ints:
    """As `best_places` with `TIE`, after scales that no optimum can contain have been discarded.

    There must be a job. Where nodes are scarce, little more is kept of most jobs than the scale that they have.
    """
    useful = np.flatnonzero(maybe_optimal(starts, sizes, values, pool))
    slim = np.searchsorted(useful, starts)
    # Each job has its smallest size for certain: what is left to be chosen is how many nodes more.
    least = sizes[useful[slim[:-1]]]
    if (rest := pool - int(least.sum())) < 0:  # by rounding only
        return best_places(starts, sizes, values, currents, pool, TIE)
    more = sizes[useful] - np.repeat(least, np.diff(slim))
    places: Ints = useful[best_places(slim, more, values[useful], currents - least, rest, TIE)]
    return places


def _starts(lengths: Sequence[int]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, dtype=np.int64))))


@jit(
    "f8[::1](i8[::1], i8[::1], f8[::1], i8[::1], f8[::1], f8[::1], f8[::1], f8[::1], i8[::1], f8, f8, b1, i8, f8[::1])",
    otherwise=table_arrays.values_of_scales,
)
def values_of_scales(
    starts: Ints,
    sizes: Ints,
    rates: Floats,
    held_starts: Ints,
    held_rates: Floats,
    up_seconds: Floats,
    down_seconds: Floats,
    boot_seconds: Floats,
    currents: Ints,
    forward_seconds: float,
    max_start_seconds: float,
    paper: bool,
    max_change: int,
    measured_stalls: Floats,
) -> Floats:
    """`ScaleRates.values_from` for all jobs at once; a scale beyond `max_change` has the value minus infinity."""
    values = np.empty(len(sizes))
    for job in range(len(currents)):
        current = currents[job]
        last = held_starts[job + 1] - held_starts[job] - 1
        old = held_rates[held_starts[job] + min(current, last)]
        trains = False
        for place in range(starts[job], starts[job + 1]):
            trains = trains or (current > 0 and sizes[place] == current)
        for place in range(starts[job], starts[job + 1]):
            size, rate = sizes[place], rates[place]
            if size > 0 and abs(size - current) > max_change:
                values[place] = -np.inf
                continue
            stall = up_seconds[job] if size > current else (down_seconds[job] if size < current else 0.0)
            if len(measured_stalls) and not np.isnan(measured_stalls[place]):
                stall = measured_stalls[place]
            values[place] = forward_seconds * rate - stall * (old if paper else rate)
            if size > current and not trains and not paper:
                whole = min(stall + boot_seconds[job], max_start_seconds)
                values[place] = forward_seconds * rate - whole * rate
            elif size > current and boot_seconds[job] > 0 and not paper:
                values[place] -= boot_seconds[job] * (rate - old)
    return values
