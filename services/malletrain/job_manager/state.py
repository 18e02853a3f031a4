"""All that JobManager knows, and what a change of it tells others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.job_manager.admission_window import AdmissionRule, BurstBufferPolicy
from malletrain.job_manager.fair_share import OwnerUse
from malletrain.job_manager.jobs import Job
from malletrain.job_manager.transitions import JobReason
from malletrain.model.job_state import JobState


@dataclass(frozen=True)
class ManagerPolicy:
    """What an operator decides; see `malletrain.job_manager.settings` for the meaning of each figure."""

    max_parallel: int = 10
    drain_grace_seconds: float = 1.5
    stop_grace_seconds: float = 5.0
    rescale_deadline_seconds: float = 60.0
    stall_seconds: float = 30.0
    restart_backoff_seconds: float = 1.0
    restart_backoff_max_seconds: float = 60.0
    restart_forgive_seconds: float = 600.0
    finish_seconds: float = 10.0
    max_parallel_per_owner: int = 0
    fair_share_half_life_seconds: float = 0.0  # recordings of versions without fair share do not have it
    keep_supervisor_seconds: float = 0.0  # nor those of versions that keep none
    burst_buffer_gb: int = 0
    admission: AdmissionRule = AdmissionRule.FIFO
    window: int = 20
    starvation_bound: int = 50

    @property
    def burst_buffer(self) -> BurstBufferPolicy:
        """How burst buffer is given to jobs."""
        return BurstBufferPolicy(self.burst_buffer_gb, self.admission, self.window, self.starvation_bound)


@dataclass(frozen=True)
class ManagerState:
    """What JobManager knows.

    Attributes:
        jobs: Jobs not in a final state, by identifier, in order of submission.
        idle: The idle set; None until Scavenger has told it.
        generation: Of the newest plan applied; 0 before the first.
        last_number: Of the newest job; 0 before the first.
        ledger: What owners use and have used lately; empty without fair share.
    """

    jobs: Mapping[str, Job] = field(default_factory=dict)
    idle: frozenset[str] | None = None
    generation: int = 0
    last_number: int = 0
    ledger: Mapping[str, OwnerUse] = field(default_factory=dict)


@dataclass(frozen=True)
class JobEvent:
    """A row of the journal; see `malletrain.v1.JobEvent`."""

    unix_seconds: float
    job_id: str
    from_state: JobState | None
    to_state: JobState
    reason_code: JobReason
    reason: str
    nodes: tuple[str, ...]
    release_seconds: float = 0.0


@dataclass(frozen=True)
class Omission:
    """What of a plan was left out: nodes that a job was not given, and why."""

    job_id: str
    nodes: tuple[str, ...]
    reason: str


class Notice(StrEnum):
    """What a trainer is told in advance, if Monitor can reach it."""

    RESCALE_COMING = "RESCALE_COMING"
    RELEASE_REQUESTED = "RELEASE_REQUESTED"
