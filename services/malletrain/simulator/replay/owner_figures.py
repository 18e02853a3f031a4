"""What each owner of a replay's jobs got, and how evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.records import JobRecord


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
