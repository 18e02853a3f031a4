"""The results of a demo run, and where the node-seconds that it was offered went: computed from what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from malletrain.cli.demo.recorder import JobChange, NodeChange, RunHistory, RunRecorder
from malletrain.cli.shared.output import state_name
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2


@dataclass(frozen=True)
class DemoJobSummary:
    """The results of one job."""

    id: str
    name: str
    state: str
    samples: int
    samples_lost: int
    rescales: int
    preemptions: int
    restarts: int
    accuracy: float | None
    loss: float | None
    scale_up_seconds: float | None
    scale_down_seconds: float | None


@dataclass(frozen=True)
class DemoSummary:
    """The results of a run.

    Attributes:
        events: Changes of the set of idle nodes.
        plans: Plans made.
        rescales: Rescales of all jobs.
        preemptions: Nodes that were taken from all jobs.
        samples: Samples processed by all jobs, net of rollbacks.
        samples_lost: Samples that were processed and rolled back.
        jobs_completed: Jobs that completed.
        jobs_failed: Jobs that failed.
        node_seconds_offered: Time in which nodes were idle.
        node_seconds_used: Of these, time in which jobs trained.
        node_seconds_lost: The difference.
        node_seconds_lost_to: What it was lost to, by the names of `accounting.OfferUse`; the sum is the difference.
        reclaim_seconds_max: Longest time in seconds from a node's leave until no process of ours was left on it.
        scale_up_seconds_median: Median stall of a growth in seconds; None if there was none.
        scale_down_seconds_median: Median stall of a shrink in seconds; None if there was none.
        stray_processes: Processes found on nodes that had been taken, or at the end, described for people.
        seconds: Duration of the run.
        trace: Origin of the trace.
        timeline: Path of the timeline.
        jobs: Results of each job.
    """

    events: int
    plans: int
    rescales: int
    preemptions: int
    samples: int
    samples_lost: int
    jobs_completed: int
    jobs_failed: int
    node_seconds_offered: float
    node_seconds_used: float
    node_seconds_lost: float
    node_seconds_lost_to: dict[str, float]
    reclaim_seconds_max: float
    scale_up_seconds_median: float | None
    scale_down_seconds_median: float | None
    stray_processes: list[str]
    seconds: float
    trace: str
    timeline: str
    jobs: list[DemoJobSummary]

    @property
    def good(self) -> bool:
        """Whether every job completed and no process was left on a node."""
        return not self.stray_processes and all(job.state == "COMPLETED" for job in self.jobs)


@dataclass(frozen=True)
class RunData:
    """What a summary is computed from, besides the recorder.

    Attributes:
        started: Start of the run in seconds since the epoch.
        ended: Its end in seconds since the epoch.
        events: Events of all jobs.
        records: Scaling records of all jobs.
        progress: Progress of all jobs.
        strays: Processes that were left on nodes, described for people.
        trace: Origin of the trace.
        timeline: Path of the timeline.
    """

    started: float
    ended: float
    events: list[job_manager_pb2.JobEvent]
    records: list[monitor_pb2.ScalingRecord]
    progress: list[monitor_pb2.Progress]
    strays: list[str]
    trace: str
    timeline: str


def summarise(recorder: RunRecorder, job_ids: list[str], data: RunData) -> DemoSummary:
    """Compute the results of a run."""
    jobs = [recorder.jobs[job_id] for job_id in job_ids]
    uses = divide_offer(recorder.history, data.ended)
    offered, used = sum(uses.values()), uses[OfferUse.TRAINING]
    rescales = [entry for record in data.records for entry in record.rescales]
    rolled_back = {entry.job_id: entry.samples_lost for entry in data.progress}
    records = {record.job_id: record for record in data.records}
    return DemoSummary(
        events=len(recorder.history.nodes),
        plans=recorder.plan.generation if recorder.plan else 0,
        rescales=sum(job.rescales for job in jobs),
        preemptions=sum(job.preemptions for job in jobs),
        samples=sum(job.samples for job in jobs),
        samples_lost=sum(rolled_back.get(job_id, 0) for job_id in job_ids),
        jobs_completed=sum(job.state == resources_pb2.JOB_STATE_COMPLETED for job in jobs),
        jobs_failed=sum(job.state == resources_pb2.JOB_STATE_FAILED for job in jobs),
        node_seconds_offered=round(offered, 1),
        node_seconds_used=round(used, 1),
        node_seconds_lost=round(offered - used, 1),
        node_seconds_lost_to={use.value: round(lost, 1) for use, lost in uses.items() if use is not OfferUse.TRAINING},
        reclaim_seconds_max=round(max((event.release_seconds for event in data.events), default=0.0), 3),
        scale_up_seconds_median=_median([e.stall_seconds for e in rescales if e.to_nodes > e.from_nodes]),
        scale_down_seconds_median=_median([e.stall_seconds for e in rescales if e.to_nodes < e.from_nodes]),
        stray_processes=data.strays,
        seconds=round(data.ended - data.started, 1),
        trace=data.trace,
        timeline=data.timeline,
        jobs=[_job(job, records.get(job.id), rolled_back.get(job.id, 0)) for job in jobs],
    )


def _job(job: resources_pb2.Job, record: monitor_pb2.ScalingRecord | None, lost: int) -> DemoJobSummary:
    record = record or monitor_pb2.ScalingRecord()
    return DemoJobSummary(
        id=job.id,
        name=job.spec.name,
        state=state_name(job.state),
        samples=job.samples,
        samples_lost=lost,
        rescales=job.rescales,
        preemptions=job.preemptions,
        restarts=job.restarts,
        accuracy=job.metrics.get("accuracy"),
        loss=job.metrics.get("loss"),
        scale_up_seconds=record.scale_up_seconds if record.HasField("scale_up_seconds") else None,
        scale_down_seconds=record.scale_down_seconds if record.HasField("scale_down_seconds") else None,
    )


def _median(values: list[float]) -> float | None:
    return round(median(values), 3) if values else None


_FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class OfferUse(Enum):
    """What an idle node is doing; its value is the name in the summary.

    Not `malletrain.model.node_use`: it goes by what plans want, a job that stands still trains on, and of nodes that
    are free it says why.

    Attributes:
        TRAINING: A job trains on it, or stands still while it rescales.
        STARTING: A job that has no other nodes boots on it.
        JOINING: A job that trains on others is to grow by it.
        LEAVING: Workers on it end: their job stops, or gives it to another.
        AWAITING_PLAN: It is free, a job could use it, and no plan has been made since it became free.
        LEFT_FREE: It is free, a job could use it, and the newest plan leaves it free.
        TOO_MANY: It is free, and the jobs that have not ended can't use so many, whatever the plan.
        NO_JOB: No job has been submitted yet, or all have ended.
    """

    TRAINING = "training"
    STARTING = "starting"
    JOINING = "joining"
    LEAVING = "leaving"
    AWAITING_PLAN = "awaiting_plan"
    LEFT_FREE = "left_free"
    TOO_MANY = "too_many"
    NO_JOB = "no_job"


@dataclass
class _Moment:
    """What is known at one moment.

    Attributes:
        idle: Nodes that are idle.
        jobs: The newest change of each job that has not ended.
        free_since: When each node that is free became so.
        planned: When the newest plan was applied.
    """

    idle: set[str] = field(default_factory=set)
    jobs: dict[str, JobChange] = field(default_factory=dict)
    free_since: dict[str, float] = field(default_factory=dict)
    planned: float = float("-inf")

    def apply(self, change: NodeChange | JobChange | float) -> None:
        """Take in a change; a number is the time of a plan."""
        if isinstance(change, NodeChange):
            self.idle = (self.idle - change.left) | change.joined
        elif isinstance(change, float):
            self.planned = change
        elif change.state in _FINAL:
            self.jobs.pop(change.job_id, None)
        else:
            self.jobs[change.job_id] = change

    def uses(self, now: float) -> Counter[OfferUse]:
        """How many idle nodes have each use from now on."""
        held: dict[str, OfferUse] = {}
        # What a job still has comes before what it is to have: a node may be one job's and promised to another.
        for part in (_coming, _leaving, lambda job: dict.fromkeys(job.nodes, OfferUse.TRAINING)):
            held.update(pair for job in self.jobs.values() for pair in part(job).items())
        free = self.idle - held.keys()
        self.free_since = {node: self.free_since.get(node, now) for node in free}
        uses = Counter(held[node] for node in self.idle & held.keys())
        if not self.jobs:
            return uses + Counter({OfferUse.NO_JOB: len(free)})
        too_many = min(len(free), len(self.idle) - most_usable(len(self.idle), self.jobs.values()))
        awaiting = sum(since >= self.planned for since in self.free_since.values())
        awaiting = min(awaiting, len(free) - too_many)
        unused = len(free) - too_many - awaiting
        return uses + Counter(
            {OfferUse.TOO_MANY: too_many, OfferUse.AWAITING_PLAN: awaiting, OfferUse.LEFT_FREE: unused}
        )


def divide_offer(history: RunHistory, end: float) -> Mapping[OfferUse, float]:
    """Divide the time in which nodes were idle.

    Args:
        history: What has happened.
        end: End of the run in seconds since the epoch.

    Returns:
        Node-seconds of each use. Their sum is what was offered.
    """
    changes: list[tuple[float, NodeChange | JobChange | float]] = [
        *((change.time, change) for change in history.nodes),
        *((change.time, change) for change in history.jobs),
        *((time, time) for time in history.plans),
    ]
    changes.sort(key=lambda entry: entry[0])
    totals = dict.fromkeys(OfferUse, 0.0)
    moment = _Moment()
    for number, (time, change) in enumerate(changes):
        moment.apply(change)
        until = changes[number + 1][0] if number + 1 < len(changes) else end
        for use, nodes in moment.uses(time).items():
            totals[use] += nodes * max(0.0, min(until, end) - time)
    return totals


def most_usable(nodes: int, jobs: Iterable[JobChange]) -> int:
    """The largest number of nodes, of so many, that jobs can use together at permitted scales."""
    reached = {0}
    for job in jobs:
        reached |= {sum_ + scale for sum_ in reached for scale in job.scales if sum_ + scale <= nodes}
    return max(reached)


def _coming(job: JobChange) -> dict[str, OfferUse]:
    """Nodes that are to be a job's."""
    return dict.fromkeys(job.wanted, OfferUse.JOINING if job.nodes else OfferUse.STARTING)


def _leaving(job: JobChange) -> dict[str, OfferUse]:
    """Nodes on which a job's workers are to end, or are ending."""
    return dict.fromkeys(job.held if job.state == "STOPPING" else job.held - job.wanted, OfferUse.LEAVING)
