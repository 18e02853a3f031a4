"""The figures of a replay (BFTrainer, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.replay.records import Columns, ReplayResult, work_ended_s
from malletrain.simulator.replay.slices import HOUR_S


@dataclass(frozen=True)
class Baselines:
    """Baselines of a replay.

    Attributes:
        resource_integral_node_hours: Node-hours offered (Eq. 17).
        equivalent_nodes: N_eq (Eq. 18): resource integral over the duration.
        static_outcome: A_s: outcome on N_eq static nodes, of the time that U is of; see `baselines.static_outcome`.
        free_outcome: Outcome on the same events with free rescaling, of the same time; None if it was not asked for.
    """

    resource_integral_node_hours: float
    equivalent_nodes: float
    static_outcome: float
    free_outcome: float | None = None


@dataclass(frozen=True)
class Metrics:
    """The figures of a replay.

    Attributes:
        utilization_efficiency: U = A_e / A_s: the outcome over that on static nodes (§4.1.2), of the time until the
            queue ran empty.
        zero_cost_bound: The same with free rescaling; None if it was not asked for.
        resource_integral_node_hours: Node-hours offered (Eq. 17).
        equivalent_nodes: N_eq (Eq. 18).
        occupied_fraction: Node-hours that jobs held over node-hours offered.
        samples: Samples processed, net of preemption and rescaling.
        preemption_cost_samples: Samples that preemption cost (Fig. 11a).
        rescale_cost_samples: Samples that rescaling cost (Fig. 11b).
        return_on_investment: Samples processed from each decision that rescaled to the next decision, over the cost of
            these rescales in samples (Fig. 8); None if there was no cost.
        preemption_within_forward: Share of node events after which a job loses a node within T_fwd (Fig. 7a).
        preempted_jobs: How often a job lost nodes.
        rescales: How often a decision changed a job's scale.
        jobs_completed: Number of jobs that were done.
        events: Number of node events.
        decisions: Number of decisions.
        mean_runtime_hours: Mean time from admission to the end of the jobs that were done, by model (Tables 3, 4).
        static_outcome: A_s.
        queue_empty_hours: When the queue ran empty: no further job is to come, and there are fewer than could train at
            once. None: there was work until the end.
        work_ended_hours: When the last of all jobs was done; None: there was work until the end.
        by_minute: Whether U and its bound are of the minutes with jobs, as those of a running system.
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
    queue_empty_hours: float | None = None
    work_ended_hours: float | None = None
    by_minute: bool = False

    def work_in_words(self, duration_s: float) -> str:
        """A sentence: from when on there was no work, and what U is of. Empty where there was work until the end.

        Args:
            duration_s: Duration of the replay in seconds.
        """
        empty, ended, whole = self.queue_empty_hours, self.work_ended_hours, _hours(duration_s / HOUR_S)
        if empty is None or (self.by_minute and ended is None):
            return ""
        counted = f"U is of the first {_hours(empty)} h, until the queue ran empty"
        if self.by_minute:
            counted = "U is of the minutes with jobs"
        if ended is None:
            return f"Fewer jobs than could train at once from hour {_hours(empty)} of {whole} on; {counted}."
        return f"No work left from hour {_hours(ended)} of {whole} on; {counted}."


def measure(result: ReplayResult, baselines: Baselines, forward_s: float) -> Metrics:
    """Compute the figures of a replay.

    Args:
        result: The replay.
        baselines: Its baselines.
        forward_s: T_fwd in seconds.
    """
    jobs, empty = result.jobs, result.queue_empty
    outcome = sum(job.samples * job.unit for job in jobs) if empty is None else empty.outcome
    ended_s = work_ended_s(result)
    static, free = baselines.static_outcome, baselines.free_outcome
    return Metrics(
        utilization_efficiency=_share(outcome, static),
        zero_cost_bound=None if free is None else _share(free, static),
        resource_integral_node_hours=baselines.resource_integral_node_hours,
        equivalent_nodes=baselines.equivalent_nodes,
        occupied_fraction=_share(
            sum(job.node_seconds for job in jobs) / HOUR_S, baselines.resource_integral_node_hours
        ),
        samples=sum(job.samples for job in jobs),
        preemption_cost_samples=sum(job.preemption_samples for job in jobs),
        rescale_cost_samples=sum(job.rescale_samples for job in jobs),
        return_on_investment=return_on_investment(result.decisions),
        preemption_within_forward=preemption_within(result.decisions, forward_s),
        preempted_jobs=sum(job.preemptions for job in jobs),
        rescales=sum(job.rescales for job in jobs),
        jobs_completed=sum(job.ended_s is not None for job in jobs),
        events=result.node_events,
        decisions=len(result.decisions["time_s"]),
        mean_runtime_hours=mean_runtime_hours(result),
        static_outcome=static,
        queue_empty_hours=None if empty is None else empty.time_s / HOUR_S,
        work_ended_hours=None if ended_s is None else ended_s / HOUR_S,
    )


def returns(decisions: Columns) -> NDArray[np.float64]:
    """Samples processed from each decision to the next, shape (decisions - 1,)."""
    return np.asarray(decisions["samples_before"][1:] - decisions["samples"][:-1], dtype=np.float64)


def return_on_investment(decisions: Columns) -> float | None:
    """Samples processed from each decision with a cost to the next decision, over these costs (Fig. 8)."""
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


def mean_runtime_hours(result: ReplayResult) -> dict[str, float]:
    """Mean time from admission to the end of the jobs that were done, by model in alphabetical order."""
    runtimes: dict[str, list[float]] = {}
    for job in result.jobs:
        if job.ended_s is not None:
            runtimes.setdefault(job.model, []).append((job.ended_s - job.admitted_s) / HOUR_S)
    return {model: float(np.mean(runtimes[model])) for model in sorted(runtimes)}


def cumulative_samples(decisions: Columns, times_s: Sequence[float]) -> NDArray[np.float64]:
    """Samples processed up to given times: linear between decisions, constant after the last one."""
    times = np.repeat(decisions["time_s"], 2)
    totals = np.ravel(np.column_stack((decisions["samples_before"], decisions["samples"])))
    return np.asarray(np.interp(times_s, times, totals), dtype=np.float64)


def sums_between(decisions: Columns, column: str, edges_s: Sequence[float]) -> NDArray[np.float64]:
    """Sum of a column over the decisions in each interval between two edges, shape (edges - 1,)."""
    return np.histogram(decisions["time_s"], bins=np.asarray(edges_s), weights=decisions[column])[0].astype(np.float64)


def _hours(hours: float) -> str:
    """Hours for people, with a digit after the point; below 10 with two digits."""
    return f"{float(f'{hours:.2g}') if hours < 10 else round(hours, 1):,g}"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
