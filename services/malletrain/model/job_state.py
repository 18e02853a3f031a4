"""States of a job, by the names of `malletrain.v1.JobState` without their prefix."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """State of a job. `malletrain.job_manager.machine.transitions` has the transitions that are permitted.

    Attributes:
        final: Whether a job stays in this state for ever.
    """

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESCALING = "RESCALING"
    WAITING = "WAITING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    final: bool

    def __init__(self, value: str) -> None:
        # An attribute rather than a property: it is asked for of every job, at every step.
        self.final = value in ("COMPLETED", "FAILED", "CANCELLED")
