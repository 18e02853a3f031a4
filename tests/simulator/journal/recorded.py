"""Recorded pasts for tests."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.journal.record import MeasuredJob, RecordedJob

CURVE = tuple(ScalingPoint(nodes, 100.0 * nodes**0.9) for nodes in range(1, 9))
Step = tuple[float, JobState, JobReason, int]


def events(steps: Sequence[Step], number: int = 1) -> tuple[JobEvent, ...]:
    """Rows of a journal: seconds, state, reason, number of nodes."""
    found: list[JobEvent] = []
    before: JobState | None = None
    for seconds, state, code, nodes in steps:
        names = tuple(f"n{index}" for index in range(nodes))
        found.append(JobEvent(seconds, f"j{number:06d}", before, state, code, "-", names))
        before = state
    return tuple(found)


def started(at: float, nodes: int, confirmed: float) -> list[Step]:
    """Submitted, admitted and started at a time, and confirmed at another."""
    return [
        (at, JobState.QUEUED, JobReason.SUBMITTED, 0),
        (at, JobState.WAITING, JobReason.ADMITTED, 0),
        (at, JobState.STARTING, JobReason.PLAN_STARTED, nodes),
        (confirmed, JobState.RUNNING, JobReason.CONFIRMED, nodes),
    ]


def rescaled(at: float, nodes: int, confirmed: float) -> list[Step]:
    """Rescaled by a plan at a time, and confirmed at another."""
    return [
        (at, JobState.RESCALING, JobReason.PLAN_RESCALED, nodes),
        (confirmed, JobState.RUNNING, JobReason.CONFIRMED, nodes),
    ]


def completed(at: float, nodes: int) -> list[Step]:
    """Stopped at a time with so many nodes, since it is complete."""
    return [
        (at, JobState.STOPPING, JobReason.TARGET_REACHED, nodes),
        (at + 1, JobState.COMPLETED, JobReason.TARGET_REACHED, 0),
    ]


def recorded_job(
    steps: Sequence[Step],
    measured: MeasuredJob | None = None,
    number: int = 1,
    target: int = 0,
    curve: tuple[ScalingPoint, ...] = CURVE,
) -> RecordedJob:
    """A job with these rows in its journal."""
    spec = JobSpec(
        name="job",
        command=("true",),
        working_directory="/",
        min_nodes=1,
        max_nodes=8,
        curve=curve,
        target_samples=target,
    )
    job = Job(number, spec, steps[-1][1], "-", create_time=steps[0][0], update_time=steps[-1][0], owner="ada")
    return RecordedJob(job, events(steps, number), measured, None)


def measured(samples: int, until: float, lost: int = 0) -> MeasuredJob:
    """What Monitor has of a job whose rates were as its curve says."""
    return MeasuredJob(samples, lost, until, CURVE)
