"""The figures of a demo run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median

from malletrain.cli.demo.history import idle_intervals, node_seconds, training_intervals
from malletrain.cli.demo.watcher import Watcher
from malletrain.cli.output import state_name
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2


@dataclass(frozen=True)
class JobSummary:
    """What became of one job."""

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
class Summary:
    """What became of the run; times in seconds, used and lost in node-seconds.

    Attributes:
        node_seconds_offered: Idle time of announced nodes.
        node_seconds_used: Time in which nodes trained.
        node_seconds_lost: The rest: starts, rescales, nodes that nobody could use.
        reclaim_seconds_max: Longest time from a leave until no process of ours was left on the node.
        stray_processes: Processes found on nodes that had been taken, and any left at the end.
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
    reclaim_seconds_max: float
    scale_up_seconds_median: float | None
    scale_down_seconds_median: float | None
    stray_processes: list[str]
    seconds: float
    trace: str
    timeline: str
    jobs: list[JobSummary]

    @property
    def good(self) -> bool:
        """Whether every job was completed and no node kept a process of ours."""
        return not self.stray_processes and all(job.state == "COMPLETED" for job in self.jobs)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Evidence:
    """What a summary is drawn from, beside the watcher's history."""

    started: float
    ended: float
    events: list[job_manager_pb2.JobEvent]
    records: list[monitor_pb2.ScalingRecord]
    progress: list[monitor_pb2.Progress]
    strays: list[str]
    trace: str
    timeline: str


def summarise(watcher: Watcher, job_ids: list[str], evidence: Evidence) -> Summary:
    """The figures of a run."""
    jobs = [watcher.jobs[job_id] for job_id in job_ids]
    offered = node_seconds(idle_intervals(watcher.history.nodes, evidence.ended))
    used = node_seconds(training_intervals(watcher.history.jobs, evidence.ended))
    rescales = [entry for record in evidence.records for entry in record.rescales]
    lost = {entry.job_id: entry.samples_lost for entry in evidence.progress}
    records = {record.job_id: record for record in evidence.records}
    return Summary(
        events=len(watcher.history.nodes),
        plans=watcher.plan.generation if watcher.plan else 0,
        rescales=sum(job.rescales for job in jobs),
        preemptions=sum(job.preemptions for job in jobs),
        samples=sum(job.samples for job in jobs),
        samples_lost=sum(lost.get(job_id, 0) for job_id in job_ids),
        jobs_completed=sum(job.state == resources_pb2.JOB_STATE_COMPLETED for job in jobs),
        jobs_failed=sum(job.state == resources_pb2.JOB_STATE_FAILED for job in jobs),
        node_seconds_offered=round(offered, 1),
        node_seconds_used=round(used, 1),
        node_seconds_lost=round(offered - used, 1),
        reclaim_seconds_max=round(max((event.release_seconds for event in evidence.events), default=0.0), 3),
        scale_up_seconds_median=_median([e.stall_seconds for e in rescales if e.to_nodes > e.from_nodes]),
        scale_down_seconds_median=_median([e.stall_seconds for e in rescales if e.to_nodes < e.from_nodes]),
        stray_processes=evidence.strays,
        seconds=round(evidence.ended - evidence.started, 1),
        trace=evidence.trace,
        timeline=evidence.timeline,
        jobs=[_job(job, records.get(job.id), lost.get(job.id, 0)) for job in jobs],
    )


def _job(job: resources_pb2.Job, record: monitor_pb2.ScalingRecord | None, lost: int) -> JobSummary:
    record = record or monitor_pb2.ScalingRecord()
    return JobSummary(
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
