"""The figures of a replay (BFTrainer, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.replay.records import Columns, Played


@dataclass(frozen=True)
class Yardstick:
    """What a replay is measured against.

    Attributes:
        resource_integral_node_hours: Node-hours offered (Eq. 17).
        equivalent_nodes: N_eq (Eq. 18): resource integral over the duration.
        static_outcome: A_s: what the jobs come to on N_eq static nodes; see `yardsticks.static_outcome`.
        free_outcome: What they come to on the same events where rescaling is free; None: not asked for.
    """

    resource_integral_node_hours: float
    equivalent_nodes: float
    static_outcome: float
    free_outcome: float | None = None


@dataclass(frozen=True)
class Metrics:
    """The figures of a replay.

    Attributes:
        utilization_efficiency: U = A_e / A_s: what was processed, net, over what static nodes would have (§4.1.2).
        zero_cost_bound: The same for an allocator for whom rescaling is free; None: not asked for.
        resource_integral_node_hours: Node-hours offered (Eq. 17).
        equivalent_nodes: N_eq (Eq. 18).
        occupied_fraction: Node-hours that jobs held, over those offered.
        samples: Samples processed, net of preemption and rescaling.
        preemption_cost_samples: Samples that preemption cost (Fig. 11a).
        rescale_cost_samples: Samples that rescaling cost (Fig. 11b).
        return_on_investment: Samples from each decision that rescaled to the next one, over what these rescales cost
            (Fig. 8); None where nothing was invested.
        preemption_within_forward: Share of node events after which a job loses a node within T_fwd (Fig. 7a).
        preempted_jobs: How often a job lost nodes.
        rescales: How often a decision changed a job's scale.
        jobs_completed: Jobs that were done.
        events: Node events.
        decisions: Node events, and completions and arrivals in between.
        mean_runtime_hours: By model: from admission to the end, of the jobs that were done (Tables 3, 4).
        static_outcome: A_s.
    """

    utilization_efficiency: float
    zero_cost_bound: float | None
    resource_integral_node_hours: float
    equivalent_nodes: float
    occupied_fraction: float
    samples: float
    preemption_cost_samples: float
    rescale_cost_samples: float
    return_on_investment: float | None
    preemption_within_forward: float
    preempted_jobs: int
    rescales: int
    jobs_completed: int
    events: int
    decisions: int
    mean_runtime_hours: Mapping[str, float]
    static_outcome: float


def measure(played: Played, yardstick: Yardstick, forward_s: float) -> Metrics:
    """The figures of a replay.

    Args:
        played: The replay.
        yardstick: What it is measured against.
        forward_s: T_fwd in seconds.
    """
    jobs = played.jobs
    outcome = sum(job.samples * job.unit for job in jobs)
    static, free = yardstick.static_outcome, yardstick.free_outcome
    return Metrics(
        utilization_efficiency=_share(outcome, static),
        zero_cost_bound=None if free is None else _share(free, static),
        resource_integral_node_hours=yardstick.resource_integral_node_hours,
        equivalent_nodes=yardstick.equivalent_nodes,
        occupied_fraction=_share(
            sum(job.node_seconds for job in jobs) / 3600.0, yardstick.resource_integral_node_hours
        ),
        samples=sum(job.samples for job in jobs),
        preemption_cost_samples=sum(job.preemption_samples for job in jobs),
        rescale_cost_samples=sum(job.rescale_samples for job in jobs),
        return_on_investment=return_on_investment(played.decisions),
        preemption_within_forward=preemption_within(played.decisions, forward_s),
        preempted_jobs=sum(job.preemptions for job in jobs),
        rescales=sum(job.rescales for job in jobs),
        jobs_completed=sum(job.ended_s is not None for job in jobs),
        events=played.node_events,
        decisions=len(played.decisions["time_s"]),
        mean_runtime_hours=mean_runtime_hours(played),
        static_outcome=static,
    )


def returns(decisions: Columns) -> NDArray[np.float64]:
    """Samples from each decision to the next; the last has no next, and none here."""
    return np.asarray(decisions["samples_before"][1:] - decisions["samples"][:-1], dtype=np.float64)


def return_on_investment(decisions: Columns) -> float | None:
    """Samples from each decision that invested to the next one, over what they invested (Fig. 8)."""
    invested = decisions["invested_samples"][:-1]
    chosen = invested > 0
    if not chosen.any():
        return None
    return float(returns(decisions)[chosen].sum() / invested[chosen].sum())


def preemption_within(decisions: Columns, seconds: float) -> float:
    """Share of node events after which a job loses a node within `seconds` (Fig. 7a)."""
    times = decisions["time_s"]
    asked = times[decisions["node_event"].astype(bool)]
    losses = times[decisions["preempted"] > 0]
    if not len(asked):
        return 0.0
    following = np.searchsorted(losses, asked, side="right")
    found = following < len(losses)
    within = found.copy()
    within[found] = losses[following[found]] - asked[found] <= seconds
    return float(within.mean())


def mean_runtime_hours(played: Played) -> dict[str, float]:
    """By model, from admission to the end, of the jobs that were done; models in alphabetical order."""
    runtimes: dict[str, list[float]] = {}
    for job in played.jobs:
        if job.ended_s is not None:
            runtimes.setdefault(job.model, []).append((job.ended_s - job.admitted_s) / 3600.0)
    return {model: float(np.mean(runtimes[model])) for model in sorted(runtimes)}


def cumulative_samples(decisions: Columns, times_s: Sequence[float]) -> NDArray[np.float64]:
    """Samples processed up to some times, linear between decisions and level after the last one."""
    times = np.repeat(decisions["time_s"], 2)
    totals = np.ravel(np.column_stack((decisions["samples_before"], decisions["samples"])))
    return np.asarray(np.interp(times_s, times, totals), dtype=np.float64)


def sums_between(decisions: Columns, column: str, edges_s: Sequence[float]) -> NDArray[np.float64]:
    """Sum of a column over the decisions of each interval between two edges."""
    return np.histogram(decisions["time_s"], bins=np.asarray(edges_s), weights=decisions[column])[0].astype(np.float64)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
