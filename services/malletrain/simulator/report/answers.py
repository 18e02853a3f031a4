"""What a replay answers a manager: what would be gained, what it would cost the users, how sure that is. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Evaluation, Scenario
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import (
    DAY_S,
    HOUR_S,
    WEEK_S,
    Values,
    cumulative_samples,
    idle_node_hours,
    node_seconds,
    whole_edges,
)

MAX_RATE, MAX_GPUS_PER_NODE = 1e9, 1024
_CURRENCY = re.compile(r"[A-Za-z][A-Za-z -]{0,15}")


@dataclass(frozen=True)
class HourlyRates:
    """What node-hours are counted in.

    Attributes:
        node_hour: Charge for a node-hour; None: not given.
        gpu_hour: Charge for a GPU-hour, in addition; None: not given.
        gpus_per_node: GPUs of each node; None: not given.
        currency: What charges are in; empty: not given.
    """

    node_hour: float | None = None
    gpu_hour: float | None = None
    gpus_per_node: int | None = None
    currency: str = ""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidInputError: one is not valid; the error names its option.
        """
        for option, rate in (("--rate", self.node_hour), ("--gpu-rate", self.gpu_hour)):
            if rate is not None and not (math.isfinite(rate) and 0 <= rate <= MAX_RATE):
                raise InvalidInputError(option, f"a charge for an hour, 0 to {MAX_RATE:g}", rate)
        if self.gpus_per_node is not None and not 1 <= self.gpus_per_node <= MAX_GPUS_PER_NODE:
            raise InvalidInputError("--gpus-per-node", f"1 to {MAX_GPUS_PER_NODE}", self.gpus_per_node)
        if self.gpu_hour is not None and self.gpus_per_node is None:
            raise InvalidInputError("--gpu-rate", "--gpus-per-node beside it")
        if self.currency and not _CURRENCY.fullmatch(self.currency):
            raise InvalidInputError("--currency", "up to 16 letters, such as EUR", self.currency)
        if self.currency and self.of_node_hour is None:
            raise InvalidInputError("--currency", "--rate or --gpu-rate beside it", self.currency)

    @property
    def of_node_hour(self) -> float | None:
        """Charge for an hour of a node with its GPUs; None: no rate is given."""
        if self.node_hour is None and self.gpu_hour is None:
            return None
        return (self.node_hour or 0.0) + (self.gpu_hour or 0.0) * (self.gpus_per_node or 0)


MIN_WEEKS, MIN_DAYS = 8, 7
_DRAWS = 2000
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval.

    Attributes:
        value: The figure.
        low: Lower end of its 95 % interval; None: nothing can be said.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit; `factor` is at least 0."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Estimate(self.value * factor, low, high)


@dataclass(frozen=True)
class Blocks:
    """Parts of a time that are drawn again: nodes and users behave alike from one to the next.

    Attributes:
        edges: Begins of the blocks in seconds, and the end of the last one; shape (blocks + 1,).
        word: What one is: `week` or `day`.
    """

    edges: Values
    word: str

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.edges) - 1


def blocks_of(duration_s: float) -> Blocks | None:
    """Whole weeks of a time, of which there must be eight; else whole days, of which there must be seven; else None."""
    if duration_s >= MIN_WEEKS * WEEK_S:
        return Blocks(whole_edges(duration_s, WEEK_S), "week")
    return Blocks(whole_edges(duration_s, DAY_S), "day") if duration_s >= MIN_DAYS * DAY_S else None


def ratio_of(value: float, parts: ArrayLike, wholes: ArrayLike, rng: np.random.Generator) -> Estimate:
    """A ratio of two sums with its 95 % interval, by drawing blocks with replacement.

    Args:
        value: The ratio of all, also of what belongs to no block.
        parts: What each block adds to the part, shape (blocks,).
        wholes: What it adds to the whole, shape (blocks,).
        rng: Draws the blocks.
    """
    above, below = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
    drawn = rng.integers(0, above.size, (_DRAWS, above.size))
    sums = below[drawn].sum(axis=1)
    ratios = np.divide(above[drawn].sum(axis=1), sums, out=np.zeros(_DRAWS), where=sums > 0)
    low, high = np.quantile(ratios, _TAILS)
    return Estimate(value, float(low), float(high))


YEAR_HOURS = 8766.0
MIN_YEARLY_S = WEEK_S
"""A shorter log says nothing about a year: nights and weekends are not like working days."""


@dataclass(frozen=True)
class Harvest:
    """What a time of idle nodes would be worth: as many node-hours of nodes that are always there.

    Attributes:
        node_hours: Node-hours.
        gpu_hours: GPU-hours; None where the GPUs of a node are not known.
        money: What these hours cost; None without a rate.
    """

    node_hours: Estimate
    gpu_hours: Estimate | None
    money: Estimate | None

    @classmethod
    def of(cls, node_hours: Estimate, rates: HourlyRates) -> Harvest:
        """The worth of node-hours."""
        charge = rates.of_node_hour
        return cls(
            node_hours,
            None if rates.gpus_per_node is None else node_hours.times(rates.gpus_per_node),
            None if charge is None else node_hours.times(charge),
        )


@dataclass(frozen=True)
class GainAnswer:
    """What would be gained.

    Attributes:
        idle_share: Idle node-hours over all node-hours; None where not all nodes are known.
        idle_node_hours: Idle node-hours.
        node_hours: All node-hours; None where not all nodes are known.
        idle_nodes: Idle nodes in the mean (Eq. 18).
        efficiency: U: what was trained, over what as many nodes that are always there would train.
        bound: U if rescaling were free; None where that was not replayed.
        nodes: Nodes of one's own that would train as much: U times the idle nodes, as far as these can be used.
        measured: Worth of the log's own time.
        yearly: Worth of a year; None where the log is shorter than a week.
    """

    idle_share: Estimate | None
    idle_node_hours: float
    node_hours: float | None
    idle_nodes: float
    efficiency: Estimate
    bound: float | None
    nodes: Estimate
    measured: Harvest
    yearly: Harvest | None


@dataclass(frozen=True)
class CostAnswer:
    """What it would cost the users of the main queue.

    Attributes:
        taken_back: How often a node was taken back.
        per_day: The same a day; None where the log is shorter than a day.
        mean_stay_s: How long a node was idle each time, in seconds.
        preemptions: How often a training lost nodes by that.
        lost_share: Of all that was processed, what the trainings lost by that.
    """

    taken_back: int
    per_day: float | None
    mean_stay_s: float
    preemptions: int
    lost_share: float


@dataclass(frozen=True)
class Answers:
    """The answers.

    Attributes:
        nodes: Number of nodes.
        duration_s: Length of the log, or of its part that is replayed, in seconds.
        gain: What would be gained.
        cost: What it would cost.
        usable_nodes: Most nodes that the trainings can use at once.
        blocks: What the intervals are over; None: there are none, because the log is too short.
    """

    nodes: int
    duration_s: float
    gain: GainAnswer
    cost: CostAnswer
    usable_nodes: int
    blocks: Blocks | None


def usable_nodes(jobs: Sequence[ReplayJob], options: ReplayOptions) -> int:
    """Most nodes that the jobs which may train at once can use; further ones are worth nothing to them."""
    scales = sorted((min(job.max_nodes, job.curve[-1].nodes) for job in jobs), reverse=True)
    turns = -(-options.max_parallel // len(scales)) if options.repeat_jobs else 1
    return sum(sorted(scales * turns, reverse=True)[: options.max_parallel])


@dataclass(frozen=True)
class Replayed:
    """A replay and what it was of.

    Attributes:
        trace: What was replayed.
        scenario: Its nodes and events.
        evaluation: The replay.
        usable_nodes: See `usable_nodes`.
        all_nodes: Whether the trace has all nodes of the system, also those that were never idle.
    """

    trace: Trace
    scenario: Scenario
    evaluation: Evaluation
    usable_nodes: int
    all_nodes: bool


def answers_of(replayed: Replayed, rates: HourlyRates, rng: np.random.Generator) -> Answers:
    """The answers of a replay."""
    scenario = replayed.scenario
    blocks = blocks_of(scenario.duration_s)
    return Answers(
        len(scenario.nodes),
        scenario.duration_s,
        _gain(replayed, rates, blocks, rng),
        _cost(scenario, replayed.evaluation),
        replayed.usable_nodes,
        blocks,
    )


def _gain(replayed: Replayed, rates: HourlyRates, blocks: Blocks | None, rng: np.random.Generator) -> GainAnswer:
    scenario, metrics = replayed.scenario, replayed.evaluation.metrics
    idle_hours, hours = metrics.resource_integral_node_hours, scenario.duration_s / HOUR_S
    # Static nodes that the jobs could not use either are worth nothing to them.
    used = min(1.0, replayed.usable_nodes / metrics.equivalent_nodes) if metrics.equivalent_nodes else 1.0
    harvested = idle_hours * used * metrics.utilization_efficiency
    efficiency, rate = Estimate(metrics.utilization_efficiency), Estimate(harvested / hours)
    share = _idle_share(replayed) if replayed.all_nodes else None
    if blocks is not None:
        idle = idle_node_hours(scenario.events, blocks.edges)
        trained = _harvest(replayed.evaluation, idle, blocks.edges)
        efficiency = ratio_of(efficiency.value, trained, idle, rng)
        rate = ratio_of(rate.value, used * trained, np.diff(blocks.edges) / HOUR_S, rng)
        if share is not None:
            share = ratio_of(share.value, idle, node_seconds(replayed.trace, blocks.edges) / HOUR_S, rng)
    return GainAnswer(
        share,
        idle_hours,
        replayed.trace.node_s / HOUR_S if replayed.all_nodes else None,
        metrics.equivalent_nodes,
        efficiency,
        metrics.zero_cost_bound,
        rate,
        Harvest.of(Estimate(harvested), rates),
        Harvest.of(rate.times(YEAR_HOURS), rates) if scenario.duration_s >= MIN_YEARLY_S else None,
    )


def _idle_share(replayed: Replayed) -> Estimate:
    whole_hours = replayed.trace.node_s / HOUR_S
    idle_hours = replayed.evaluation.metrics.resource_integral_node_hours
    return Estimate(idle_hours / whole_hours if whole_hours else 0.0)


def _harvest(evaluation: Evaluation, idle: Values, edges: Values) -> Values:
    """Idle node-hours times U of each block.

    U of a block follows from its samples, where samples can be compared: of one model, with work until the end.
    Otherwise it is that of all blocks.
    """
    metrics, samples = evaluation.metrics, evaluation.metrics.samples
    alike = len({job.model for job in evaluation.result.jobs}) == 1
    if not alike or metrics.queue_empty_hours is not None or samples <= 0:
        return idle * metrics.utilization_efficiency
    trained = np.diff(cumulative_samples(evaluation.result.decisions, edges.tolist()))
    per_sample = metrics.utilization_efficiency * metrics.resource_integral_node_hours / samples
    return np.asarray(np.maximum(trained, 0.0) * per_sample, np.float64)


def _cost(scenario: Scenario, evaluation: Evaluation) -> CostAnswer:
    metrics = evaluation.metrics
    taken_back = sum(len(event.left) for event in scenario.events)
    joined = sum(len(event.joined) for event in scenario.events)
    processed = metrics.samples + metrics.preemption_cost_samples + metrics.rescale_cost_samples
    days = scenario.duration_s / DAY_S
    return CostAnswer(
        taken_back,
        taken_back / days if days >= 1.0 else None,
        metrics.resource_integral_node_hours * HOUR_S / joined if joined else 0.0,
        metrics.preempted_jobs,
        metrics.preemption_cost_samples / processed if processed > 0 else 0.0,
    )
