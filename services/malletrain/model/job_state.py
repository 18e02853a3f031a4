"""States of a job, by the names of `malletrain.v1.JobState` without their prefix."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands. Which state may follow which is in `malletrain.job_manager.transitions`."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESCALING = "RESCALING"
    WAITING = "WAITING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether a job stays in this state for ever."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
