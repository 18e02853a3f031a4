"""Baselines of a replay: the same jobs on static nodes, and the same replay with free rescaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.allocator.problem.objective import scale_rates
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.model.job_value import LINEAR_VALUE
from malletrain.simulator.replay.arrivals import places
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import Accounting, ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import ReplayResult


def outcome_of(result: ReplayResult) -> float:
    """A_e: samples processed by all jobs, net of losses, each weighted by its unit in the metric."""
    return sum(job.samples * job.unit for job in result.jobs)


def free_options(options: ReplayOptions) -> ReplayOptions:
    """Options of the zero-cost bound: the production allocator, free rescaling, one owner, events at once."""
    return replace(
        options,
        free=True,
        engine=ReplayEngine.FAST,
        policy=ReplayPolicy.MILP,
        accounting=Accounting.EVENT,
        paper_quirks=False,
        max_parallel_per_owner=0,
        max_nodes_per_owner=0,
        fair_share_half_life_s=0.0,
    )


def endless_work(jobs: Sequence[ReplayJob], options: ReplayOptions) -> ReplayOptions:
    """Options with which there is always work: the set is repeated, and never more of it trains at once than it has."""
    return replace(options, repeat_jobs=True, max_parallel=places(jobs, options))


def static_outcome(jobs: Sequence[ReplayJob], nodes: float, options: ReplayOptions) -> float:
    """A_s: the outcome of the same job mix on static nodes (BFTrainer, section 4.1.2).

    It is found by a replay on nodes that are always idle, with free rescaling. If the number of nodes is not whole, the
    outcome is interpolated linearly between the two whole numbers around it. A_s requires more jobs than can be done:
    the job set is repeated as often as necessary. Of a set with fewer jobs than places, no more train at once than it
    has.

    Args:
        jobs: Jobs in the order of submission.
        nodes: N_eq, equivalent nodes (Eq. 18), at least 0.
        options: Only duration, metric and max_parallel are used.
    """
    below = floor(nodes)
    low = _static(jobs, below, options)
    return low if nodes == below else low + (nodes - below) * (_static(jobs, below + 1, options) - low)


def static_rate(jobs: Sequence[ReplayJob], nodes: float, metric: ObjectiveMetric) -> float:
    """Metric per second of jobs that all run at once on static nodes; linear between whole numbers of nodes."""
    below = floor(nodes)
    table = ChoiceTable.of(
        [scale_rates(replace(job.with_costs(0.0), value=LINEAR_VALUE).demand(), metric, below + 1) for job in jobs]
    )
    low, high = (
        table.choose([0] * len(jobs), pool, ObjectiveParameters(1.0, CostModel.STALL)).objective
        for pool in (below, below + 1)
    )
    return low + (nodes - below) * (high - low)


def _static(jobs: Sequence[ReplayJob], nodes: int, options: ReplayOptions) -> float:
    if nodes == 0:
        return 0.0
    names = [f"static{index}" for index in range(nodes)]
    event = NodeEvent(0.0, tuple((name, 0.0) for name in names), ())
    return outcome_of(run_replay([event], names, jobs, endless_work(jobs, free_options(options))))
