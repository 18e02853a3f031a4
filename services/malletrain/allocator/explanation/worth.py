"""What each scale of each job, and one node of the pool, is worth in one part of a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from math import isfinite
from typing import Protocol

import numpy as np

from malletrain.allocator.explanation.forced import IMPOSSIBLE, ForcedOptima
from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.group_table import GroupTable, requires_group
from malletrain.allocator.problem.kinds import suitable_nodes
from malletrain.allocator.problem.objective import (
    ScaleValues,
    max_start_seconds,
    permitted_sizes,
    rates,
    scale_rates,
    trains_on,
)
from malletrain.allocator.problem.scale_pins import PinnedProblem
from malletrain.allocator.solvers.choice_table import choose, groups_of
from malletrain.model.topology import TopologyPreference

TIE = 1e-9
"""Amounts below this fraction of the largest objective are 0: they come from rounding."""
MAX_STEPS = 4_000_000_000
"""Most steps of the dynamic programs of one explanation: a few seconds."""


class Reason(Enum):
    """Why a job has no more or no fewer nodes; `ScaleReason` in `allocator.proto` says what each means."""

    PINNED = auto()
    MAXIMUM = auto()
    CURVE_END = auto()
    POOL_TOO_SMALL = auto()
    OWNER_LIMIT = auto()
    NO_FASTER = auto()
    RESCALE_COST = auto()
    OTHERS_GAIN_MORE = auto()
    TIE = auto()
    NOT_OPTIMAL = auto()
    WORTH_IT = auto()
    WAITS = auto()
    UNSUITABLE_NODES = auto()
    GROUP_TOO_SMALL = auto()
    POOL_LIMIT = auto()


@dataclass(frozen=True)
class Worth:
    """What one scale of a job is worth. Amounts are in weighted metric x seconds.

    Attributes:
        nodes: Scale in nodes.
        rate: Throughput by the curve, in samples/s.
        cost: What the rescale to it costs; already subtracted from `value`.
        value: What the job itself adds to the objective.
        loss: By how much the best plan with the job at this scale is worse than the plan; infinite where there is none.
        others_loss: How much of that the other jobs lose.
        needed_rate: Rate at this scale in samples/s that would make such a plan as good; 0 where none would, or it is
            not asked for.
    """

    nodes: int
    rate: float
    cost: float
    value: float
    loss: float = 0.0
    others_loss: float = 0.0
    needed_rate: float = 0.0

    @property
    def possible(self) -> bool:
        """Whether the plan could have the job at this scale."""
        return isfinite(self.loss)


@dataclass(frozen=True)
class JobAccount:
    """Why a job has its scale.

    Attributes:
        job: The job, as the problem's part has it.
        pool: Name of its pool.
        chosen: What it has.
        more: The next permitted scale; for a job that waits, the scale with the smallest loss. None: there is none.
        more_reason: Why it does not have that.
        fewer: The next smaller permitted scale; None for jobs that wait.
        fewer_reason: Why it does not have that.
        owner_nodes: What its owner's jobs have together, in nodes, if the owner has a limit.
        scales: All its scales, if they were asked for.
        equal_nodes: What it would have if all owners had the same share; None: they have.
        suitable: How many nodes of the part suit it; of a job whose nodes must be in one group, the most of one that it
            could be in; of one whose replicas must be in one each, those that make whole replicas.
        group_cost: How much more the objective would be if its nodes need not be in groups.
    """

    job: JobDemand
    pool: str
    chosen: Worth
    more: Worth | None
    more_reason: Reason
    fewer: Worth | None
    fewer_reason: Reason
    owner_nodes: int = 0
    scales: tuple[Worth, ...] = ()
    equal_nodes: int | None = None
    suitable: int = 0
    group_cost: float = 0.0

    @property
    def next_node_value(self) -> float:
        """What the job itself gains for each node that `more` adds."""
        if self.more is None:
            return 0.0
        return (self.more.value - self.chosen.value) / (self.more.nodes - self.chosen.nodes)


@dataclass(frozen=True)
class PlannedPart:
    """One part of a plan.

    Attributes:
        pool: Name of its pool.
        problem: The part, with its pinned jobs' nodes assigned.
        assignments: Nodes of every job of the part, by job identifier.
    """

    pool: str
    problem: PinnedProblem
    assignments: Mapping[str, tuple[str, ...]]

    def count(self, job_id: str) -> int:
        """Scale of a job in nodes."""
        return len(self.assignments[job_id])


@dataclass(frozen=True)
class PartAccount:
    """What the nodes of a part are worth. Amounts are in weighted metric x seconds.

    Attributes:
        objective: The objective of this part.
        one_more_gain: How much more it would be with one free node more.
        one_fewer_loss: How much less it would be with one node less to hand out; 0 where there is none.
        pin_cost: How much more it would be without the scale pins.
        unused: Nodes that no job was given.
        pinned: Nodes that pinned jobs have.
    """

    objective: float
    one_more_gain: float
    one_fewer_loss: float
    pin_cost: float
    unused: int
    pinned: int


def steps(problem: AllocationProblem) -> int:
    """About how many steps the dynamic programs of a part's explanation take."""
    pool = len(problem.nodes) + 1
    sizes = sum(min(job.max_nodes, job.curve[-1].nodes, pool) for job in problem.jobs)
    limits = groups_of(problem)
    owners = 2 * pool * pool * (len(limits) + 1) + len(problem.jobs) * pool * pool if limits else 0
    return 2 * sizes * pool + owners


class Optima(Protocol):
    """Best objectives of one problem under conditions."""

    def best(self, nodes: int) -> float:
        """The best objective on so many nodes: as many as there are, one less or one more."""

    def with_scale(self, job: int, place: int) -> float:
        """The best objective with a job at a scale, by their indices; minus infinity where it does not fit."""


class Solving(Protocol):
    """How a part is solved again."""

    def optima(self, problem: AllocationProblem, per_job: Sequence[ScaleValues]) -> Optima:
        """Best objectives of a problem; scales of its jobs are of up to one node more than it has."""

    def counts(self, problem: AllocationProblem) -> list[int]:
        """Nodes of each job in the best plan."""


class ByCounts:
    """Solves by dynamic programs. They are exact where only numbers of nodes constrain the jobs."""

    def optima(self, problem: AllocationProblem, per_job: Sequence[ScaleValues]) -> Optima:
        """See `Solving`."""
        return ForcedOptima(per_job, problem.capacity, groups_of(problem))

    def counts(self, problem: AllocationProblem) -> list[int]:
        """See `Solving`."""
        counts: list[int] = choose(problem).counts.tolist()
        return counts


class PartExplainer:
    """Solves one part of a plan again, as often as it is asked."""

    def __init__(self, part: PlannedPart, solving: Solving | None = None) -> None:
        """Solves the part once, for all answers.

        Args:
            solving: How it is solved; None: by dynamic programs, which do where all nodes suit all jobs.
        """
        self.part = part
        self._solving = solving or ByCounts()
        self._rest = part.problem.rest
        self._pool = self._rest.capacity
        self._values = [_values(job, self._rest) for job in self._rest.jobs]
        self._optima = self._solving.optima(self._rest, self._values)
        self._index = {job.id: index for index, job in enumerate(self._rest.jobs)}
        counts = (part.count(job.id) for job in self._rest.jobs)
        self._objective = sum(_value_at(values, count) for values, count in zip(self._values, counts, strict=True))
        self._tie = TIE * sum(float(np.abs(values.values).max()) for values in self._values)

    def account(self) -> PartAccount:
        """What the nodes are worth."""
        whole, pinned = self.part.problem.whole, self.part.problem.pinned
        pinned_counts = {job.id: self.part.count(job.id) for job in whole.jobs if job.id in pinned}
        set_value = sum(
            _value_at(_values(job, whole), pinned_counts[job.id]) for job in whole.jobs if job.id in pinned_counts
        )
        planned = self._objective + set_value
        best, nodes = self._optima.best(self._pool), len(self._rest.nodes)
        more, fewer = self._rest.within_limit(nodes + 1), self._rest.within_limit(max(0, nodes - 1))
        return PartAccount(
            objective=planned,
            one_more_gain=self._rounded(self._optima.best(more) - best),
            one_fewer_loss=self._rounded(best - self._optima.best(fewer)),
            pin_cost=self._rounded(self._best_of(whole) - planned) if pinned_counts else 0.0,
            unused=len(whole.nodes) - sum(map(len, self.part.assignments.values())),
            pinned=sum(pinned_counts.values()),
        )

    def job(self, job_id: str, *, all_scales: bool = False) -> JobAccount:
        """Why a job of the part has its scale.

        Args:
            job_id: Identifier of the job.
            all_scales: Whether all its scales are listed.
        """
        if job_id not in self._index:
            return self._pinned_account(job_id)
        index = self._index[job_id]
        job, values, count = self._rest.jobs[index], self._values[index], self.part.count(job_id)
        chosen = self._worth(index, values.index(count))
        more = self._start(index) if count == 0 else self._next(index, count)
        fewer = self._worth(index, values.index(count) - 1) if count else None
        owner_nodes = sum(self.part.count(other.id) for other in self._rest.jobs if other.owner == job.owner)
        return JobAccount(
            job=job,
            pool=self.part.pool,
            chosen=chosen,
            more=more,
            more_reason=self._why_not_more(job, chosen, more, owner_nodes),
            fewer=fewer,
            fewer_reason=self._why_not_fewer(fewer),
            owner_nodes=owner_nodes if job.owner in self._rest.owner_limits else 0,
            scales=self._scales(index) if all_scales else (),
            equal_nodes=self._equal_counts[index] if self._equal_counts else None,
            suitable=self._suitable(index),
            group_cost=self._group_cost(index) if requires_group(job) else 0.0,
        )

    @cached_property
    def _groups(self) -> GroupTable:
        return GroupTable.of(self._rest)

    def _suitable(self, index: int) -> int:
        """How many nodes suit a job; if it must be in groups, how many it could have of them."""
        job = self._rest.jobs[index]
        return self._groups.most_nodes(index) if requires_group(job) else len(suitable_nodes(self._rest, job))

    def _group_cost(self, index: int) -> float:
        """How much better a plan would be in which the nodes of one job need not be in groups."""
        jobs = list(self._rest.jobs)
        jobs[index] = replace(jobs[index], topology=TopologyPreference.NONE, topology_level=0)
        free = self._solving.optima(replace(self._rest, jobs=tuple(jobs)), self._values)
        return max(0.0, self._rounded(free.best(self._pool) - self._optima.best(self._pool)))

    @cached_property
    def _equal_counts(self) -> list[int]:
        """Nodes of each job if all owners had the same share; empty where they have."""
        jobs = self._rest.jobs
        if len({job.share_weight for job in jobs}) < 2:
            return []
        equal = (replace(job, weight=job.weight / job.share_weight, share_weight=1.0) for job in jobs)
        return self._solving.counts(replace(self._rest, jobs=tuple(equal)))

    def _best_of(self, problem: AllocationProblem) -> float:
        per_job = [_values(job, problem) for job in problem.jobs]
        return self._solving.optima(problem, per_job).best(problem.capacity)

    def _pinned_account(self, job_id: str) -> JobAccount:
        whole = self.part.problem.whole
        job = next(entry for entry in whole.jobs if entry.id == job_id)
        values, count = _values(job, whole), self.part.count(job_id)
        worth = Worth(count, float(rates(job, [count])[0]), 0.0, _value_at(values, count))
        return JobAccount(job, self.part.pool, worth, None, Reason.PINNED, None, Reason.PINNED)

    def _scales(self, index: int) -> tuple[Worth, ...]:
        fitting = np.flatnonzero(self._values[index].sizes <= self._pool)
        return tuple(self._worth(index, int(place)) for place in fitting)

    def _start(self, index: int) -> Worth | None:
        """The scale at which a job that waits would cost the plan least; the smallest one where none is possible."""
        starts = [worth for worth in self._scales(index) if worth.nodes]
        possible = [worth for worth in starts if worth.possible]
        if possible:
            return min(possible, key=lambda worth: worth.loss)
        return starts[0] if starts else self._next(index, 0)

    def _next(self, index: int, count: int) -> Worth | None:
        """The next permitted scale, which may be larger than the pool."""
        job, values = self._rest.jobs[index], self._values[index]
        place = values.index(count) + 1
        if place < len(values.sizes):
            return self._worth(index, place)
        beyond = [int(size) for size in permitted_sizes(job, job.curve[-1].nodes) if size > count]
        if not beyond:
            return None
        larger = scale_rates(job, self._rest.objective_metric, beyond[0]).values_from(
            values.current, self._rest.forward_seconds, self._rest.cost_model
        )
        return _worth_of(job, larger, larger.index(beyond[0]), float("inf"), 0.0)

    def _worth(self, index: int, place: int) -> Worth:
        job, values = self._rest.jobs[index], self._values[index]
        forced = self._optima.with_scale(index, place)
        if forced == IMPOSSIBLE:
            return _worth_of(job, values, place, float("inf"), 0.0)
        loss = self._rounded(self._objective - forced)
        chosen = values.index(self.part.count(job.id))
        others = self._rounded(loss + float(values.values[place] - values.values[chosen]))
        worth = _worth_of(job, values, place, loss, others)
        needed = _needed_rate(job, values, worth, self._rest) if loss > 0 else 0.0
        return Worth(worth.nodes, worth.rate, worth.cost, worth.value, loss, others, needed)

    def _why_not_more(self, job: JobDemand, chosen: Worth, more: Worth | None, owner_nodes: int) -> Reason:
        if more is None:
            return Reason.MAXIMUM if job.curve[-1].nodes >= job.max_nodes else Reason.CURVE_END
        limit = self._rest.owner_limits.get(job.owner)
        if more.nodes > self._pool:
            return Reason.POOL_TOO_SMALL if more.nodes > len(self._rest.nodes) else Reason.POOL_LIMIT
        if not more.possible and requires_group(job) and not self._groups.possible(self._index[job.id], more.nodes):
            return Reason.GROUP_TOO_SMALL
        if not more.possible and not requires_group(job) and more.nodes > self._suitable(self._index[job.id]):
            return Reason.UNSUITABLE_NODES
        if limit is not None and more.nodes > limit:
            return Reason.OWNER_LIMIT
        if more.loss < 0:
            return Reason.NOT_OPTIMAL
        if more.loss == 0:
            return Reason.TIE
        if more.value <= chosen.value:
            return Reason.NO_FASTER if more.rate <= chosen.rate else Reason.RESCALE_COST
        if limit is not None and owner_nodes + more.nodes - chosen.nodes > limit:
            return Reason.OWNER_LIMIT
        return Reason.OTHERS_GAIN_MORE

    @staticmethod
    def _why_not_fewer(fewer: Worth | None) -> Reason:
        if fewer is None:
            return Reason.WAITS
        if fewer.loss == 0:
            return Reason.TIE
        return Reason.WORTH_IT if fewer.loss > 0 else Reason.NOT_OPTIMAL

    def _rounded(self, amount: float) -> float:
        return 0.0 if abs(amount) <= self._tie else amount


def _values(job: JobDemand, problem: AllocationProblem) -> ScaleValues:
    """Scales of up to one node more than the problem has."""
    choices = scale_rates(job, problem.objective_metric, problem.within_limit(len(problem.nodes) + 1))
    return choices.values_from(len(job.current_nodes), problem.forward_seconds, problem.cost_model)


def _value_at(values: ScaleValues, count: int) -> float:
    """What a job adds to the objective; 0 at a scale that is not permitted, as in `scale_pins`."""
    place = values.index(count)
    return float(values.values[place]) if place < len(values.sizes) and values.sizes[place] == count else 0.0


def _worth_of(job: JobDemand, values: ScaleValues, place: int, loss: float, others_loss: float) -> Worth:
    size = int(values.sizes[place])
    rate = float(rates(job, [size])[0])
    return Worth(size, rate, float(values.costs[place]), float(values.values[place]), loss, others_loss)


def _needed_rate(job: JobDemand, values: ScaleValues, worth: Worth, problem: AllocationProblem) -> float:
    """The rate at a scale that would raise the job's value there by the loss.

    The value is linear in the rate: T_fwd x O(n), less the stall x O(n) and boot x (O(n) - O(C)). It is not asked for
    at the present scale, whose rate also decides what other scales cost, nor where others than samples/s
    count.
    """
    counts_itself = job.value.linear and problem.objective_metric is ObjectiveMetric.THROUGHPUT
    if worth.nodes in (0, values.current) or not counts_itself:
        return 0.0
    slope = problem.forward_seconds
    if problem.cost_model is CostModel.STALL:
        grows = worth.nodes > values.current
        stall = job.scale_up_seconds if grows else job.scale_down_seconds
        for known in job.stalls:
            if (known.from_nodes, known.to_nodes) == (values.current, worth.nodes):
                stall = known.seconds
        whole = stall + (job.boot_seconds if grows else 0.0)
        starts = grows and not trains_on(values.sizes, values.current)
        slope -= min(whole, max_start_seconds(slope)) if starts else whole
    return worth.rate + worth.loss / (job.weight * slope) if slope > 0 else 0.0
