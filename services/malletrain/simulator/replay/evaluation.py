"""A replay with its baselines and its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor

from malletrain.allocator.problem.allocation_problem import CostModel, ObjectiveMetric
from malletrain.allocator.problem.objective import scale_rates
from malletrain.allocator.solvers.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.model.job_value import LINEAR_VALUE
from malletrain.model.node_needs import NodeNeeds, in_words, suits
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.simulator.replay.arrivals import places
from malletrain.simulator.replay.fast_engine import Progress, run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent, node_events, resource_integral
from malletrain.simulator.replay.options import Accounting, ReplayEngine, ReplayOptions, ReplayPolicy
from malletrain.simulator.replay.records import Baselines, JobRecord, Metrics, ReplayResult, measure
from malletrain.simulator.services.engine import run_services_replay


def check_suitable(jobs: Iterable[ReplayJob], nodes: Iterable[str], facts: Mapping[str, NodeFacts]) -> None:
    """Refuse a job that could never run: it would keep its place until the end.

    Args:
        nodes: All nodes of the replay.
        facts: What nodes are; those that are missing are not known.

    Raises:
        InvalidInputError: fewer nodes suit a job than it needs at least; names the job.
    """
    traits = [(name, facts.get(name, NO_FACTS).traits) for name in nodes]
    counts: dict[NodeNeeds, int] = {}
    for job in jobs:
        if not job.needs:
            continue
        if job.needs not in counts:
            counts[job.needs] = sum(suits(job.needs, name, about) for name, about in traits)
        if (suitable := counts[job.needs]) < job.min_nodes:
            expected = f"at least {job.min_nodes} nodes that suit job {job.id} ({in_words(job.needs)})"
            raise InvalidInputError("node_traits beside the trace", expected, suitable)


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


@dataclass(frozen=True)
class BurstBufferFigures:
    """What became of jobs that ask for burst buffer, and of others.

    Attributes:
        burst_buffer_usage: GB-hours that jobs held, of those of the quota, 0 to 1.
        mean_wait_hours_asking: Mean time from the submission of a job that asks for burst buffer to its admission; to
            the end of the replay for jobs that were not admitted. None if there is none.
        mean_wait_hours_others: The same of the others.
    """

    burst_buffer_usage: float
    mean_wait_hours_asking: float | None
    mean_wait_hours_others: float | None


def burst_buffer_figures(
    jobs: Sequence[ReplayJob], records: Sequence[JobRecord], duration_s: float, quota_gb: int
) -> BurstBufferFigures:
    """The figures.

    Args:
        jobs: All jobs.
        records: Those that were admitted.
        duration_s: Duration of the replay in seconds; jobs that are submitted later are left out.
        quota_gb: The quota in GB, above 0.
    """
    by_id = {record.job: record for record in records}
    held, asking, others = 0.0, list[float](), list[float]()
    for job in jobs:
        if job.submit_s >= duration_s:
            continue
        record = by_id.get(job.id)
        admitted = duration_s if record is None else record.admitted_s
        ended = duration_s if record is None or record.ended_s is None else record.ended_s
        held += job.burst_buffer_gb * (ended - admitted)
        (asking if job.burst_buffer_gb else others).append(admitted - job.submit_s)
    return BurstBufferFigures(held / (quota_gb * duration_s), _mean_hours(asking), _mean_hours(others))


def _mean_hours(seconds: Sequence[float]) -> float | None:
    return sum(seconds) / len(seconds) / 3600.0 if seconds else None


@dataclass(frozen=True)
class Scenario:
    """Input of a replay.

    Attributes:
        nodes: All nodes in the trace's order.
        events: The changes of the idle set.
        duration_s: The duration in seconds.
        facts: What nodes are, of which that is known; only the services engine takes notice of it.
    """

    nodes: tuple[str, ...]
    events: tuple[NodeEvent, ...]
    duration_s: float
    facts: Mapping[str, NodeFacts] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, trace: Trace, duration_s: float, facts: Mapping[str, NodeFacts] | None = None) -> Scenario:
        """The first seconds of a trace.

        Args:
            duration_s: So many seconds of it.
            facts: What nodes are; None: nothing is known of them but their names.

        Raises:
            InvalidInputError: no node is idle in that time.
        """
        events = node_events(trace, duration_s)
        if not events:
            raise InvalidInputError("--hours", "a time in which at least one node is idle", duration_s / 3600.0)
        return cls(trace.nodes, tuple(events), duration_s, dict(facts or {}))

    def until(self, seconds: float) -> Scenario:
        """The evaluation until an earlier end, in seconds."""
        events = tuple(event for event in self.events if event.time_s < seconds)
        return replace(self, events=events, duration_s=seconds)

    @property
    def node_hours(self) -> float:
        """Resource integral in node-hours (Eq. 17)."""
        return resource_integral(self.events, self.duration_s)

    @property
    def equivalent_nodes(self) -> float:
        """N_eq (Eq. 18)."""
        return self.node_hours * 3600.0 / self.duration_s


@dataclass(frozen=True)
class Evaluation:
    """A replay and its figures.

    Attributes:
        result: The replay.
        metrics: Its figures.
        wall_seconds: How long the replay took, without the baselines.
        free: The replay with free rescaling; None if there was none.
        owners: What each owner got; empty if all jobs are one owner's.
        burst_buffer: What the quota of burst buffer made of it; None if no job asks for any.
    """

    result: ReplayResult
    metrics: Metrics
    wall_seconds: float
    free: ReplayResult | None
    owners: tuple[OwnerFigures, ...] = ()
    burst_buffer: BurstBufferFigures | None = None

    @property
    def jain_index(self) -> float:
        """Jain's index of the owners' nodes while they had jobs; 1 without owners."""
        return jain_index([owner.nodes_while_present for owner in self.owners])


def evaluate(
    scenario: Scenario,
    jobs: Sequence[ReplayJob],
    options: ReplayOptions,
    *,
    bound: bool = True,
    progress: Progress = lambda _: None,
    seconds: Callable[[], float] = time.perf_counter,
) -> Evaluation:
    """Replay, and compute the figures.

    U and its bound suppose that there is always work. Where the queue runs empty before the end, they are of the time
    until then, in which free rescaling may need the job set once more.

    The quota of burst buffer, and what jobs need of their nodes, are the replay's alone: for the zero-cost bound and on
    static nodes there is no quota, and any node suits any job.

    Args:
        scenario: Nodes and events.
        jobs: Jobs in the order of submission.
        options: Options of the replay.
        bound: Whether to replay with free rescaling too, for the zero-cost bound.
        progress: Told the simulated second after every decision.
        seconds: Clock for wall_seconds.

    Raises:
        InvalidInputError: a job asks for more burst buffer than the quota, or for nodes of which there are too few.
    """
    options.check_requests(jobs)
    check_suitable(jobs, scenario.nodes, scenario.facts)
    started = seconds()
    if options.engine is ReplayEngine.SERVICES:
        of_nodes = scenario.facts
        result = run_services_replay(scenario.events, scenario.nodes, jobs, options, progress, facts=of_nodes)
    else:
        result = run_replay(scenario.events, scenario.nodes, jobs, options, progress)
    wall_seconds = seconds() - started
    empty = result.queue_empty
    busy = scenario if empty is None else scenario.until(empty.time_s)
    compared = replace(options, duration_s=busy.duration_s)
    free = run_replay(scenario.events, scenario.nodes, jobs, free_options(options)) if bound else None
    bounding = free
    if free is not None and (empty is not None or free.queue_empty is not None):
        bounding = run_replay(busy.events, busy.nodes, jobs, endless_work(jobs, free_options(compared)))
    baselines = Baselines(
        scenario.node_hours,
        scenario.equivalent_nodes,
        static_outcome(jobs, busy.equivalent_nodes, compared),
        None if bounding is None else outcome_of(bounding),
    )
    several = len({job.owner for job in jobs}) > 1
    owners = owner_figures(jobs, result.jobs, scenario.duration_s) if several else ()
    burst_buffer = (
        burst_buffer_figures(jobs, result.jobs, scenario.duration_s, options.burst_buffer_gb)
        if any(job.burst_buffer_gb for job in jobs)
        else None
    )
    metrics = measure(result, baselines, options.forward_s)
    return Evaluation(result, metrics, wall_seconds, free, owners, burst_buffer)


@dataclass(frozen=True)
class OwnerFigures:
    """What one owner got.

    Attributes:
        owner: Name of the owner.
        jobs: Jobs that were submitted.
        jobs_completed: Jobs that were done.
        node_hours: Node-hours that its jobs held.
        nodes_while_present: Nodes that its jobs held on average while it had a job that was submitted and not done.
        samples: Samples processed, net.
        mean_wait_hours: Mean time from the submission of a job to its first nodes; to the end of the replay for jobs
            that got none.
        mean_turnaround_hours: Mean time from the submission of a job to its end; None if none was done.
    """

    owner: str
    jobs: int
    jobs_completed: int
    node_hours: float
    nodes_while_present: float
    samples: float
    mean_wait_hours: float
    mean_turnaround_hours: float | None


def owner_figures(
    jobs: Sequence[ReplayJob], records: Sequence[JobRecord], duration_s: float
) -> tuple[OwnerFigures, ...]:
    """The figures of each owner, in the order of their first submissions.

    Args:
        jobs: All jobs.
        records: Those that were admitted.
        duration_s: Duration of the replay in seconds; jobs that are submitted later are left out.
    """
    by_id = {record.job: record for record in records}
    owned: dict[str, list[ReplayJob]] = {}
    for job in sorted(jobs, key=lambda job: job.submit_s):
        if job.submit_s < duration_s:
            owned.setdefault(job.owner, []).append(job)
    return tuple(_figures(owner, entries, by_id, duration_s) for owner, entries in owned.items())


def _figures(owner: str, jobs: Sequence[ReplayJob], by_id: dict[str, JobRecord], duration_s: float) -> OwnerFigures:
    records = [by_id[job.id] for job in jobs if job.id in by_id]
    waits, spans = [], []
    for job in jobs:
        record = by_id.get(job.id)
        started = record.started_s if record is not None else None
        ended = record.ended_s if record is not None else None
        waits.append((duration_s if started is None else started) - job.submit_s)
        spans.append((job.submit_s, duration_s if ended is None else ended))
    turnarounds = [record.ended_s - record.submit_s for record in records if record.ended_s is not None]
    node_seconds = sum(record.node_seconds for record in records)
    return OwnerFigures(
        owner=owner,
        jobs=len(jobs),
        jobs_completed=len(turnarounds),
        node_hours=node_seconds / 3600.0,
        nodes_while_present=node_seconds / (_covered_seconds(spans) or 1.0),
        samples=sum(record.samples for record in records),
        mean_wait_hours=sum(waits) / len(waits) / 3600.0,
        mean_turnaround_hours=sum(turnarounds) / len(turnarounds) / 3600.0 if turnarounds else None,
    )


def _covered_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def jain_index(amounts: Sequence[float]) -> float:
    """Jain's index of fairness: (sum x)^2 / (n sum x^2), from 1/n (one has all) to 1 (all have the same).

    R. Jain, D.-M. Chiu, W. Hawe: "A quantitative measure of fairness and discrimination for resource allocation in
    shared computer systems", DEC-TR-301, 1984.
    """
    squares = len(amounts) * sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / squares if squares else 1.0
