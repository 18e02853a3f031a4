"""What is told of jobs: how they ended, and that they have had no nodes for long. Pure.

A notice has what every viewer may see of a job, and nothing more: it goes to places that are read by many.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import JobEvent
from malletrain.model.job_state import JobState

FORMAT = 1


class NoticeKind(StrEnum):
    """Which event of a job a notice is about: its end, or that it has had no nodes for long."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING = "waiting"


_ENDS = {
    JobState.COMPLETED: NoticeKind.COMPLETED,
    JobState.FAILED: NoticeKind.FAILED,
    JobState.CANCELLED: NoticeKind.CANCELLED,
}
_WITHOUT_NODES = (JobState.QUEUED, JobState.WAITING)


@dataclass(frozen=True)
class JobNotice:
    """One event of a job that receivers are told.

    Attributes:
        id: The same whenever it is told again, so that receivers can leave out what they have.
        kind: The event.
        unix_seconds: When, in seconds since the epoch.
        waited_seconds: For how long it has had no nodes; 0 where it has ended.
    """

    id: str
    kind: NoticeKind
    unix_seconds: float
    job: Job
    waited_seconds: float = 0.0

    def as_json(self) -> str:
        """The body of the notice, as receivers get it."""
        job = self.job
        content = {
            "format": FORMAT,
            "id": self.id,
            "event": self.kind.value,
            "unixSeconds": self.unix_seconds,
            "job": {
                "id": job.id,
                "name": job.spec.name,
                "owner": job.owner,
                "fleetId": job.fleet_id,
                "state": job.state.value,
                "reasonCode": job.reason_code.value,
                "samples": job.samples,
                "targetSamples": job.spec.target_samples,
                "restarts": job.restarts,
                "preemptions": job.preemptions,
            },
        }
        if self.kind is NoticeKind.WAITING:
            content["waitedSeconds"] = round(self.waited_seconds, 1)
        return json.dumps(content)


def end_notice(sequence: int, event: JobEvent, job: Job | None, kinds: Collection[NoticeKind]) -> JobNotice | None:
    """The notice of a row of the journal, if it says that a job has ended.

    Args:
        sequence: Number of the row.
        event: The row.
        job: Its job; None if it is no longer kept.
        kinds: What is to be told.
    """
    kind = _ENDS.get(event.to_state)
    if kind is None or kind not in kinds or job is None or event.from_state is event.to_state:
        return None
    return JobNotice(f"{sequence}", kind, event.unix_seconds, job)


@dataclass(frozen=True)
class Waits:
    """When the present waits of jobs without nodes began, in seconds since the epoch.

    Attributes:
        since: By job.
        told: Jobs of whose present wait the receiver knows.
    """

    since: Mapping[str, float] = field(default_factory=dict)
    told: frozenset[str] = frozenset()


def waits_now(before: Waits, jobs: Iterable[Job], now: float) -> Waits:
    """The waits of jobs as they are now. A wait ends when the job has nodes; the next one begins anew.

    One that has never had nodes waits since it was submitted.
    """
    since = {
        job.id: before.since.get(job.id, now if job.start_time is not None else job.create_time)
        for job in jobs
        if job.state in _WITHOUT_NODES
    }
    return Waits(since, before.told & since.keys())


def due_waits(waits: Waits, seconds: float, now: float) -> list[str]:
    """Jobs that have had no nodes for so long, and of which the receiver was not told; the longest wait first."""
    due = [(since, job_id) for job_id, since in waits.since.items() if now - since >= seconds]
    return [job_id for _, job_id in sorted(due) if job_id not in waits.told]
