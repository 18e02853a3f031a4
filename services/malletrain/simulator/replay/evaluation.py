"""A replay with its baselines and its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.simulator.replay.baselines import endless_work, free_options, outcome_of, static_outcome
from malletrain.simulator.replay.burst_buffer_figures import BurstBufferFigures, burst_buffer_figures
from malletrain.simulator.replay.fast_engine import Progress, run_replay
from malletrain.simulator.replay.job_needs import check_suitable
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.metrics import Baselines, Metrics, measure
from malletrain.simulator.replay.node_events import NodeEvent, node_events, resource_integral
from malletrain.simulator.replay.options import ReplayEngine, ReplayOptions
from malletrain.simulator.replay.records import JobRecord, ReplayResult
from malletrain.simulator.services.engine import run_services_replay

NO_NODE_FACTS: Mapping[str, NodeFacts] = MappingProxyType({})
"""Nothing is known of nodes but their names."""


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
    def of(cls, trace: Trace, duration_s: float, facts: Mapping[str, NodeFacts] = NO_NODE_FACTS) -> Scenario:
        """The first seconds of a trace.

        Args:
            trace: The trace.
            duration_s: So many seconds of it.
            facts: What nodes are.

        Raises:
            InvalidInputError: no node is idle in that time.
        """
        events = node_events(trace, duration_s)
        if not events:
            raise InvalidInputError("--hours", "a time in which at least one node is idle", duration_s / 3600.0)
        return cls(trace.nodes, tuple(events), duration_s, facts)

    def until(self, seconds: float) -> Scenario:
        """The same until an earlier end, in seconds."""
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
    found = [by_id[job.id] for job in jobs if job.id in by_id]
    waits, spans = [], []
    for job in jobs:
        record = by_id.get(job.id)
        started = record.started_s if record is not None else None
        ended = record.ended_s if record is not None else None
        waits.append((duration_s if started is None else started) - job.submit_s)
        spans.append((job.submit_s, duration_s if ended is None else ended))
    turnarounds = [record.ended_s - record.submit_s for record in found if record.ended_s is not None]
    node_seconds = sum(record.node_seconds for record in found)
    return OwnerFigures(
        owner=owner,
        jobs=len(jobs),
        jobs_completed=len(turnarounds),
        node_hours=node_seconds / 3600.0,
        nodes_while_present=node_seconds / (_covered(spans) or 1.0),
        samples=sum(record.samples for record in found),
        mean_wait_hours=sum(waits) / len(waits) / 3600.0,
        mean_turnaround_hours=sum(turnarounds) / len(turnarounds) / 3600.0 if turnarounds else None,
    )


def _covered(spans: Sequence[tuple[float, float]]) -> float:
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
