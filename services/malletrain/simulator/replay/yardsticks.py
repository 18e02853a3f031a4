"""What a replay is measured against: the same jobs on static nodes, and an allocator for whom rescaling is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor

from malletrain.allocator.menu import Menu, Terms
from malletrain.allocator.problem import CostModel, ObjectiveMetric
from malletrain.allocator.worth import choices_of, metric_scale
from malletrain.simulator.replay.engine import play
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import Accounting, Options, Policy
from malletrain.simulator.replay.records import Played
from malletrain.simulator.replay.workload import TraceJob

_GENEROUS = 1.3


def outcome_of(played: Played) -> float:
    """A_e: what all jobs processed, net of what was lost, in samples times what a sample is worth in the metric."""
    return sum(job.samples * job.unit for job in played.jobs)


def free_options(options: Options) -> Options:
    """The zero-cost bound: the production allocator where rescaling is free, completions and arrivals at once."""
    return replace(options, free=True, policy=Policy.MILP, accounting=Accounting.EVENT, paper_quirks=False)


def static_outcome(jobs: Sequence[TraceJob], nodes: float, options: Options) -> float:
    """A_s: what the same job mix comes to on static nodes (BFTrainer, section 4.1.2).

    That is a replay on nodes that are always idle: `max_parallel` jobs at once, first come first served, best counts at
    every moment, no costs. The number of nodes need not be whole: between two whole numbers the outcome is taken to be
    linear. A_s supposes more jobs than can be done, so that the job set is repeated as often as it takes.

    Args:
        jobs: Jobs in the order of submission.
        nodes: N_eq, equivalent nodes (Eq. 18), at least 0.
        options: Duration, metric and max_parallel are used.
    """
    below = floor(nodes)
    low = _static(jobs, below, options)
    return low if nodes == below else low + (nodes - below) * (_static(jobs, below + 1, options) - low)


def static_rate(jobs: Sequence[TraceJob], nodes: float, metric: ObjectiveMetric) -> float:
    """Metric per second of some jobs that all run at once on static nodes; linear between whole numbers of nodes."""
    below = floor(nodes)
    menu = Menu.of([choices_of(job.with_costs(0.0).demand(), metric, below + 1) for job in jobs])
    low, high = (
        menu.choose([0] * len(jobs), pool, Terms(1.0, CostModel.STALL)).objective for pool in (below, below + 1)
    )
    return low + (nodes - below) * (high - low)


def _static(jobs: Sequence[TraceJob], nodes: int, options: Options) -> float:
    if nodes == 0:
        return 0.0
    names = [f"static{index}" for index in range(nodes)]
    event = NodeEvent(0.0, tuple((name, 0.0) for name in names), ())
    repeats = ceil(_about_done(jobs, nodes, options) / len(jobs))
    while True:
        played = play([event], names, _repeated(jobs, repeats), free_options(options))
        if any(job.ended_s is None for job in played.jobs) or jobs[-1].submit_s >= options.duration_s:
            return outcome_of(played)
        repeats *= 2


def _about_done(jobs: Sequence[TraceJob], nodes: int, options: Options) -> float:
    """About how many jobs will be done, rather too many; nothing but the time of a replay depends on it."""
    rate = static_rate(jobs[: options.max_parallel], nodes, options.metric)
    size = sum(job.samples * metric_scale(job.demand(), options.metric) for job in jobs) / len(jobs)
    return _GENEROUS * rate * options.duration_s / size + options.max_parallel


def _repeated(jobs: Sequence[TraceJob], repeats: int) -> list[TraceJob]:
    last_s = jobs[-1].submit_s
    again = [replace(job, id=f"{job.id}#{turn}", submit_s=last_s) for turn in range(1, repeats) for job in jobs]
    return [*jobs, *again]
