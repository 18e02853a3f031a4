"""All that JobManager knows, and the working copy that one step changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.states import JobState, check_transition


@dataclass(frozen=True)
class Policy:
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


@dataclass(frozen=True)
class World:
    """What JobManager knows.

    Attributes:
        jobs: Jobs not in a final state, by identifier, in order of submission.
        idle: The idle set; None until Scavenger has told it.
        generation: Of the newest plan applied; 0 before the first.
        last_number: Of the newest job; 0 before the first.
    """

    jobs: Mapping[str, Job] = field(default_factory=dict)
    idle: frozenset[str] | None = None
    generation: int = 0
    last_number: int = 0


@dataclass(frozen=True)
class JobEvent:
    """A row of the journal; see `malletrain.v1.JobEvent`."""

    unix_seconds: float
    job_id: str
    from_state: JobState | None
    to_state: JobState
    reason: str
    nodes: tuple[str, ...]
    release_seconds: float = 0.0


class Notice(StrEnum):
    """What a trainer is told in advance, where Monitor can reach it."""

    RESCALE_COMING = "RESCALE_COMING"
    RELEASE_REQUESTED = "RELEASE_REQUESTED"


class Turn:
    """The working copy of one step: collects the jobs that change, the journal and the notices to trainers."""

    def __init__(self, world: World, policy: Policy, now: float) -> None:
        """Begin a step at `now`, in seconds since the epoch."""
        self.policy = policy
        self.now = now
        self.jobs: dict[str, Job] = dict(world.jobs)
        self.idle = world.idle
        self.generation = world.generation
        self.last_number = world.last_number
        self.changed: dict[str, Job] = {}
        self.events: list[JobEvent] = []
        self.notices: list[tuple[str, Notice]] = []

    def active(self) -> list[Job]:
        """Jobs not in a final state, in order of submission."""
        return [job for job in self.jobs.values() if not job.state.final]

    def put(self, job: Job, **changes: Any) -> Job:
        """Change fields of a job without a row in the journal."""
        changed = replace(job, **changes)
        if changed == job:
            return job
        return self._store(replace(changed, update_time=self.now))

    def add(self, job: Job) -> Job:
        """A new job, with its first row in the journal."""
        self.events.append(JobEvent(self.now, job.id, None, job.state, job.reason, ()))
        return self._store(job)

    def move(self, job: Job, state: JobState, reason: str, **changes: Any) -> Job:
        """Bring a job to a state (or keep it there), with the reason in the job and in the journal.

        Raises:
            IllegalTransitionError: the table knows no such transition.
            ValueError: the reason is empty.
        """
        check_transition(job.state, state)
        if not reason:
            raise ValueError(f"{job.id}: expected a reason for the transition to {state}")
        moved = replace(job, state=state, reason=reason, update_time=self.now, **changes)
        self.events.append(JobEvent(self.now, job.id, job.state, state, reason, moved.commanded))
        return self._store(moved)

    def note(self, job: Job, reason: str, release_seconds: float) -> None:
        """A row of the journal that leaves the job's own reason alone."""
        self.events.append(JobEvent(self.now, job.id, job.state, job.state, reason, job.commanded, release_seconds))

    def holders(self) -> dict[str, str]:
        """Who holds each node that is held: identifier by node."""
        return {node: job.id for job in self.jobs.values() for node in job.held}

    def world(self) -> World:
        """What JobManager knows after the step."""
        jobs = {job.id: job for job in self.active()}
        return World(jobs, self.idle, self.generation, self.last_number)

    def _store(self, job: Job) -> Job:
        self.jobs[job.id] = job
        self.changed[job.id] = job
        return job
