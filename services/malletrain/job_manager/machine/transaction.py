"""The working copy of the state that one stimulus changes, and the operations on it that write the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from malletrain.job_manager.machine.job_table import JobTable
from malletrain.job_manager.machine.jobs import Job, StopIntent
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState, Notice
from malletrain.job_manager.machine.transitions import IllegalTransitionError, JobReason, permits_transition
from malletrain.job_manager.machine.usage import OpenUsage, UsageRow
from malletrain.model.job_state import JobState


class Transaction:
    """The working copy: collects the jobs that change, rows for the journal, and notices to trainers."""

    def __init__(self, state: ManagerState, policy: ManagerPolicy, now: float) -> None:
        """Begin at `now`, in seconds since the epoch."""
        self.policy = policy
        self.now = now
        self.jobs = JobTable.of(state.jobs)
        self.idle = state.idle
        self.generation = state.generation
        self.last_number = state.last_number
        self.ledger = state.ledger
        self.gpus = state.gpus
        self.usage_day = state.usage_day
        self.usage_rows: dict[tuple[int, int], UsageRow] = {}
        self._usage = state.usage
        self._new_usage: dict[str, OpenUsage | None] = {}
        self.changed: dict[str, Job] = {}
        self.events: list[JobEvent] = []
        self.notices: list[tuple[str, Notice, int]] = []

    def state(self) -> ManagerState:
        """What JobManager knows after the transaction."""
        # Jobs that have ended are removed only now: until here, other steps of the transaction may look at them.
        for job in self.changed.values():
            if job.state.final:
                self.jobs.remove(job.id)
        return ManagerState(
            self.jobs,
            self.idle,
            self.generation,
            self.last_number,
            self.ledger,
            self.gpus,
            self._present_usage(),
            self.usage_day,
        )

    def active(self) -> list[Job]:
        """Jobs not in a final state, in order of submission."""
        return [job for job in self.jobs.values() if not job.state.final]

    def add(self, job: Job) -> Job:
        """Add a new job, with its first row in the journal."""
        self.events.append(JobEvent(self.now, job.id, None, job.state, job.reason_code, job.reason, ()))
        return self._store(job)

    def put(self, job: Job, **changes: Any) -> Job:
        """Change fields of a job without a row in the journal."""
        # A job that stays as it was must not be stored, nor told to all who watch jobs.
        if all(getattr(job, name) == value for name, value in changes.items()):
            return job
        return self._store(replace(job, **{**changes, "update_time": self.now}))

    def move(self, job: Job, state: JobState, code: JobReason, reason: str, **changes: Any) -> Job:
        """Bring a job to a state, or keep it in its state, and record why in the job and in the journal.

        Args:
            state: The state after.
            code: Why, for scripts.
            reason: Why, for people.
            changes: Other fields of the job that change.

        Raises:
            IllegalTransitionError: the table contains no such transition.
            ValueError: the reason is empty.
        """
        if not permits_transition(job.state, state):
            raise IllegalTransitionError(job.id, job.state, state, code)
        if not reason:
            raise ValueError(f"job {job.id}: expected a reason for the transition to {state} ({code})")
        moved = replace(job, state=state, reason_code=code, reason=reason, update_time=self.now, **changes)
        self.events.append(JobEvent(self.now, job.id, job.state, state, code, reason, moved.commanded))
        return self._store(moved)

    def add_event(self, job: Job, code: JobReason, reason: str, release_seconds: float = 0.0) -> None:
        """Add a row to the journal; the job's own reason stays."""
        self.events.append(
            JobEvent(self.now, job.id, job.state, job.state, code, reason, job.commanded, release_seconds)
        )

    def stop(
        self,
        job: Job,
        intent: StopIntent,
        code: JobReason,
        reason: str,
        wanted: tuple[str, ...] = (),
        commanded: tuple[str, ...] | None = None,
    ) -> Job:
        """End the processes of a job with a supervisor. Nothing changes if a stop of this rank is under way.

        The job holds its nodes until its processes are confirmed to be gone: no other job may use them before.

        Args:
            intent: Why, which decides the state after it.
            code: Why, for scripts.
            reason: Why, for people.
            wanted: Nodes to start again on afterwards.
            commanded: Nodes that its processes still have; None: all that it had.
        """
        if not intent.outranks(job.stop):
            return job
        return self.move(
            job,
            JobState.STOPPING,
            code,
            reason,
            stop=intent,
            supervised=True,
            serving=job.serving or job.kept,  # a kept supervisor is told to stop, and not started for that
            wanted=wanted,
            commanded=job.commanded if commanded is None else commanded,
            confirmed=(),
            stalled_since=None,
            idle_since=None,
            deadlocked=False,
            phase="",
            phase_since=None,
            changed_at=self.now,
        )

    def finish(self, job: Job, state: JobState, code: JobReason, reason: str, **changes: Any) -> Job:
        """Bring a job that has no processes to a final state."""
        return self.move(
            job, state, code, reason, end_time=self.now, wanted=(), not_before=None, waits_for=(), **changes
        )

    def add_usage(self, row: UsageRow) -> None:
        """Have a row of the usage stored, in place of the one of its job and day."""
        self.usage_rows[row.job_number, row.day] = row

    def put_usage(self, job: Job, usage: OpenUsage) -> None:
        """Keep the usage of a job, and have it stored; the last one of a job that has ended is complete."""
        self._new_usage[job.id] = open_ = None if job.state.final else usage
        amounts = usage.counting(job.samples, job.preemptions)
        self.add_usage(UsageRow(job.number, usage.day, job.owner, job.spec.project, amounts, open_))

    def usage_of(self, job_id: str) -> OpenUsage | None:
        """The usage of a job; None: it has none yet."""
        return self._new_usage[job_id] if job_id in self._new_usage else self._usage.get(job_id)

    def _present_usage(self) -> Mapping[str, OpenUsage]:
        """The usage after the transaction; the same object where nothing has changed."""
        if not self._new_usage:
            return self._usage
        merged = dict(self._usage)
        for job_id, usage in self._new_usage.items():
            if usage is None:
                merged.pop(job_id, None)
            else:
                merged[job_id] = usage
        return merged

    def set_aside(self, job: Job) -> Job:
        """Replace a job without counting it as changed: for a caller that changes it further in this transaction."""
        self.jobs.put(job)
        return job

    def _store(self, job: Job) -> Job:
        self.changed[job.id] = job
        return self.set_aside(job)
