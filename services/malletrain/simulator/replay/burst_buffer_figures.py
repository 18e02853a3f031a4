"""What the quota of burst buffer made of a replay: how much of it was held, and how long jobs waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.records import JobRecord


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
