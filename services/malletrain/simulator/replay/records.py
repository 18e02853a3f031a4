"""Results of a replay: one row per decision and per job, slices of time, and its figures (BFTrainer, section 4.1)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.arrivals import QueueEmpty
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.running_job import RunningJob


class Decision(NamedTuple):
    """One row: an event and the decision that followed.

    Attributes:
        time_s: When, in seconds.
        node_event: Whether nodes joined or left.
        joined: Nodes that joined.
        left: Nodes that left.
        admitted: Jobs that were admitted.
        ended: Jobs that ended.
        preempted: Jobs that lost nodes to the main scheduler.
        rescaled: Jobs whose scale the decision changed.
        pool: Idle nodes after the event, in use or not.
        used: Nodes that jobs hold after the decision.
        active: Admitted jobs.
        running: Jobs that hold nodes.
        rate: Samples/s of all jobs when none of them stalls.
        preemption_samples: Samples lost at once to preemption.
        invested_samples: Cost of the decision's rescales in samples.
        samples_before: Samples processed by all jobs up to now, net, before the costs of this row.
        samples: The same after these costs.
    """

    time_s: float
    node_event: bool
    joined: int
    left: int
    admitted: int
    ended: int
    preempted: int
    rescaled: int
    pool: int
    used: int
    active: int
    running: int
    rate: float
    preemption_samples: float
    invested_samples: float
    samples_before: float
    samples: float


Columns = Mapping[str, NDArray[Any]]


_STORED_AS = {bool: "b", int: "q", float: "d"}
_COLUMN_TYPES = {bool: np.bool_, int: np.int64, float: np.float64}
_FIELD_TYPES: tuple[type, ...] = tuple(get_type_hints(Decision).values())


class Decisions:
    """Collects rows, of about 130 bytes each: a year of a large machine has millions."""

    def __init__(self) -> None:
        self._columns: tuple[array[Any], ...] = tuple(array(_STORED_AS[kind]) for kind in _FIELD_TYPES)

    def add(self, row: Decision) -> None:
        """Add the newest row."""
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def columns(self) -> Columns:
        """All rows, by column. No row can be added afterwards."""
        return {
            name: np.frombuffer(column, dtype=_COLUMN_TYPES[kind])
            for name, column, kind in zip(Decision._fields, self._columns, _FIELD_TYPES, strict=True)
        }


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job that was admitted.

    Attributes:
        job: Identifier.
        model: Name of its model.
        submit_s: When it was submitted, in seconds.
        admitted_s: When it was admitted.
        started_s: When it first had nodes; None if it never did.
        ended_s: When it was done; None if it was not.
        samples: Samples processed, net.
        unit: Value of a sample in the metric.
        node_seconds: Node-seconds that it held.
        preemptions: Events in which it lost nodes to the main scheduler.
        rescales: Decisions that changed its scale.
        preemption_samples: Samples that preemption cost.
        rescale_samples: Samples that rescaling cost.
        owner: Name of the user who submitted it.
    """

    job: str
    model: str
    submit_s: float
    admitted_s: float
    started_s: float | None
    ended_s: float | None
    samples: float
    unit: float
    node_seconds: float
    preemptions: int
    rescales: int
    preemption_samples: float
    rescale_samples: float
    owner: str = ""


@dataclass(frozen=True)
class ReplayResult:
    """A whole replay.

    Attributes:
        decisions: Columns of `Decision`.
        jobs: The jobs that were admitted.
        node_events: Number of node events.
        queue_empty: From when on there was less work than there were places; None: there was work until the end.
    """

    decisions: Columns
    jobs: tuple[JobRecord, ...]
    node_events: int
    queue_empty: QueueEmpty | None = None


def job_record(run: RunningJob) -> JobRecord:
    """The record of a job in its present state."""
    return JobRecord(
        job=run.job.id,
        model=run.job.model,
        submit_s=run.job.submit_s,
        admitted_s=run.admitted_s,
        started_s=run.started_s,
        ended_s=run.ended_s,
        samples=run.done,
        unit=run.unit,
        node_seconds=run.node_seconds,
        preemptions=run.preemptions,
        rescales=run.rescales,
        preemption_samples=run.preemption_samples,
        rescale_samples=run.rescale_samples,
        owner=run.job.owner,
    )


def work_ended_s(result: ReplayResult) -> float | None:
    """When the last of all jobs was done, in seconds; None: there was work until the end."""
    ends = [job.ended_s for job in result.jobs if job.ended_s is not None]
    return max(ends) if result.queue_empty is not None and ends and len(ends) == len(result.jobs) else None


def outcome_so_far(ended: Iterable[JobRecord], running: Iterable[RunningJob], now_s: float) -> float:
    """Samples processed up to `now_s` by jobs that are done and by those that are not, each weighted by its unit."""
    done = sum(job.samples * job.unit for job in ended)
    return done + sum(run.done_at(now_s) * run.unit for run in running)


HOUR_S, DAY_S, WEEK_S = 3600.0, 86_400.0, 604_800.0
MAX_SLICES = 62
"""Bars that a chart has room for."""
_LENGTHS = (
    (60.0, "every minute"),
    (300.0, "every five minutes"),
    (900.0, "every quarter of an hour"),
    (HOUR_S, "every hour"),
    (6 * HOUR_S, "every six hours"),
    (DAY_S, "every day"),
    (WEEK_S, "every week"),
    (4 * WEEK_S, "every four weeks"),
    (13 * WEEK_S, "every thirteen weeks"),
    (52 * WEEK_S, "every 52 weeks"),
)
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Slices:
    """Slices of equal length; the last one may be shorter.

    Attributes:
        edges: Where they begin, in seconds, and where the last one ends; shape (slices + 1,).
        words: How often one begins: `every six hours`.
    """

    edges: Values
    words: str

    @property
    def lengths(self) -> Values:
        """Seconds of each slice, shape (slices,)."""
        return np.diff(self.edges)


def slices_of(duration_s: float) -> Slices:
    """Slices of a time: as short as there is room for in a chart, and of a length that people count in."""
    length_s, words = next(
        ((length, words) for length, words in _LENGTHS if duration_s <= MAX_SLICES * length),
        (duration_s / MAX_SLICES, f"{MAX_SLICES} slices"),
    )
    return Slices(edges_of(duration_s, length_s), words)


def edges_of(duration_s: float, length_s: float) -> Values:
    """Begins of slices of a length, and the end of the last one, which may be shorter; seconds, shape (slices + 1,)."""
    begins = np.arange(0.0, duration_s, length_s)
    return np.append(begins[begins < duration_s], duration_s)


def whole_edges(duration_s: float, length_s: float) -> Values:
    """As `edges_of`, of the slices that are whole; shape (slices + 1,)."""
    return np.asarray(np.arange(int(duration_s // length_s) + 1) * length_s, np.float64)


def integral_between(times_s: ArrayLike, values: ArrayLike, edges_s: ArrayLike) -> Values:
    """Integral of a step function over each interval between two edges, shape (edges - 1,).

    Args:
        times_s: When values begin to hold, in order, shape (n,). Before the first one the function is 0.
        values: The values, shape (n,); each holds until the next one begins.
        edges_s: Edges in order.
    """
    times, steps = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    edges = np.asarray(edges_s, np.float64)
    if not times.size:
        return np.zeros(max(0, edges.size - 1))
    last = max(float(edges[-1]), float(times[-1]))
    places = np.append(times, last)
    sums = np.concatenate(([0.0], np.cumsum(np.diff(places) * steps)))
    return np.asarray(np.diff(np.interp(edges, places, sums)), np.float64)


def idle_node_hours(events: Sequence[NodeEvent], edges_s: ArrayLike) -> Values:
    """Node-hours offered between consecutive edges (Eq. 17), shape (edges - 1,)."""
    times = [event.time_s for event in events]
    counts = np.cumsum([len(event.joined) - len(event.left) for event in events])
    return integral_between(times, counts, edges_s) / HOUR_S


def node_seconds(trace: Trace, edges_s: ArrayLike) -> Values:
    """Node-seconds of a system between consecutive edges: of each node as long as it was part; shape (edges - 1,)."""
    changes = [(0.0, len(trace.nodes))]
    for begin, end in trace.present_s.values():
        changes += [(0.0, -1), (begin, 1), (end, -1)]
    changes.sort()
    counts = np.cumsum([change for _, change in changes])
    return integral_between([time for time, _ in changes], counts, edges_s)


def nodes_taken_back(events: Sequence[NodeEvent], edges_s: ArrayLike) -> Values:
    """Nodes that left the idle set between consecutive edges, shape (edges - 1,)."""
    times = [event.time_s for event in events]
    leaving_counts = [float(len(event.left)) for event in events]
    return np.asarray(np.histogram(times, bins=np.asarray(edges_s), weights=leaving_counts)[0], np.float64)


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
    event_times = times[decisions["node_event"].astype(bool)]
    losses = times[decisions["preempted"] > 0]
    if not len(event_times):
        return 0.0
    following = np.searchsorted(losses, event_times, side="right")
    followed = following < len(losses)
    within = followed.copy()
    within[followed] = losses[following[followed]] - event_times[followed] <= seconds
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
