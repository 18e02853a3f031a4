"""All that JobManager knows, and what a change of it tells others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from malletrain.job_manager.machine.admission import AdmissionRule, BurstBufferPolicy
from malletrain.job_manager.machine.fair_share import OwnerUse
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.machine.usage import OpenUsage
from malletrain.model.job_state import JobState


@dataclass(frozen=True)
class ManagerPolicy:
    """What an operator decides; see `malletrain.job_manager.settings` for the meaning of each figure."""

    max_parallel: int = 10
    drain_grace_seconds: float = 1.5
    stop_grace_seconds: float = 5.0
    rescale_deadline_seconds: float = 60.0
    stall_seconds: float = 90.0
    idle_seconds: float = 600.0
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
    longest_release_grace_seconds: float = 30.0
    distrusts_supervisors: bool = False
    meters_usage: bool = False  # recordings of versions without it do not have it, and replays need none

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
        gpus: Number of GPUs by node, where there are any and the Scavenger has told it since the start.
        usage: Usage of the jobs, as far as they have any, by identifier.
        usage_day: The last day that has begun for it, in days since the epoch; 0 before the first step.
    """

    jobs: Mapping[str, Job] = field(default_factory=dict)
    idle: frozenset[str] | None = None
    generation: int = 0
    last_number: int = 0
    ledger: Mapping[str, OwnerUse] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, OpenUsage] = field(default_factory=dict)
    usage_day: int = 0


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


@dataclass(frozen=True)
class JobsChanged:
    """What watchers of jobs are told.

    Attributes:
        jobs: Jobs that changed, as they are now, by identifier.
        generation: Of the newest plan, if this one has changed them.
        progressed: Those of which nothing but samples has changed.
    """

    jobs: Mapping[str, Job]
    generation: int | None = None
    progressed: Set[str] = frozenset()

    def followed_by(self, later: JobsChanged) -> JobsChanged:
        """Merge this change and a later one, for a watcher that has read neither yet."""
        generation = self.generation if later.generation is None else later.generation
        # Of a job that only the one names, it counts what that one says; of a job that both name, what both say.
        only_progress = (
            (self.progressed - later.jobs.keys())
            | (later.progressed - self.jobs.keys())
            | (self.progressed & later.progressed)
        )
        return JobsChanged({**self.jobs, **later.jobs}, generation, only_progress)

    def for_watcher(self, *, without_progress: bool) -> Collection[Job]:
        """The jobs that a watcher is told of.

        Args:
            without_progress: Whether it does not want to know of samples alone.
        """
        if not without_progress:
            return self.jobs.values()
        return [job for name, job in self.jobs.items() if name not in self.progressed]
