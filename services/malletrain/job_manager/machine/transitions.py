"""The transition table of a job's states, and the reasons for transitions."""

from __future__ import annotations

from enum import StrEnum

from malletrain.model.job_state import JobState


class IllegalTransitionError(RuntimeError):
    """A transition that the table does not contain: always a defect of MalleTrain, never of its input."""

    def __init__(self, job_id: str, before: JobState, after: JobState, code: JobReason) -> None:
        super().__init__(f"job {job_id}: no transition from {before} to {after} ({code})")
        self.job_id = job_id


class JobReason(StrEnum):
    """Why a job is in its state: the names of `malletrain.v1.JobReason`, explained there, without their prefix."""

    UNSPECIFIED = "UNSPECIFIED"
    SUBMITTED = "SUBMITTED"
    ADMITTED = "ADMITTED"
    PLAN_STARTED = "PLAN_STARTED"
    PLAN_RESCALED = "PLAN_RESCALED"
    PLAN_NO_NODES = "PLAN_NO_NODES"
    PLAN_MOVED = "PLAN_MOVED"
    CONFIRMED = "CONFIRMED"
    PREEMPTED = "PREEMPTED"
    PREEMPTED_BELOW_MINIMUM = "PREEMPTED_BELOW_MINIMUM"
    PREEMPTED_STATE_LOST = "PREEMPTED_STATE_LOST"
    PREEMPTION_NOT_SURVIVED = "PREEMPTION_NOT_SURVIVED"
    NODE_RELEASED = "NODE_RELEASED"
    WORKERS_LOST = "WORKERS_LOST"
    WORKER_FAILED = "WORKER_FAILED"
    RESCALE_TIMED_OUT = "RESCALE_TIMED_OUT"
    STALLED = "STALLED"
    STOPPED = "STOPPED"
    RESTARTED = "RESTARTED"
    BACKOFF_ENDED = "BACKOFF_ENDED"
    TARGET_REACHED = "TARGET_REACHED"
    TRAINER_DONE = "TRAINER_DONE"
    EXITED = "EXITED"
    CANCELLED = "CANCELLED"
    SHUTDOWN = "SHUTDOWN"
    OWNER_LIMIT = "OWNER_LIMIT"
    START_POSTPONED = "START_POSTPONED"
    BURST_BUFFER = "BURST_BUFFER"
    DEPENDENCY = "DEPENDENCY"
    WEIGHT_SET = "WEIGHT_SET"

    @classmethod
    def _missing_(cls, value: object) -> JobReason:
        """Stored by a later version: the prose beside it says what it was."""
        del value
        return cls.UNSPECIFIED


_S = JobState
_PROCESSES_ENDED = {
    _S.WAITING: "its processes ended: stopped for now, or restarted after a failure",
    _S.COMPLETED: "the trainer said so, the target was reached, or rank 0 ended with exit status 0",
    _S.FAILED: "its processes failed once more than it may be restarted",
}

TRANSITIONS: dict[JobState, dict[JobState, str]] = {
    _S.QUEUED: {
        _S.WAITING: "admitted; see malletrain.job_manager.machine.admission",
        _S.CANCELLED: "cancelled before it was admitted, or a job that it depends on did not complete",
    },
    _S.WAITING: {
        _S.STARTING: "a plan gave it nodes, and they are free",
        _S.STOPPING: "cancelled, or its target turns out to be reached, while its supervisor is kept without nodes",
        _S.COMPLETED: "its target turns out to be reached",
        _S.CANCELLED: "cancelled while it had no processes",
    },
    _S.STARTING: {
        _S.RUNNING: "the first scale is confirmed",
        _S.STOPPING: "its nodes are taken away, it is cancelled, or it does not come up in time",
        **_PROCESSES_ENDED,
    },
    _S.RUNNING: {
        _S.RESCALING: "a change of scale is commanded",
        _S.STOPPING: "no nodes are left for it, it is cancelled, it reached its target, or it stalls",
        **_PROCESSES_ENDED,
    },
    _S.RESCALING: {
        _S.RUNNING: "the new scale is confirmed",
        _S.STOPPING: "no nodes are left for it, it is cancelled, or the new scale is not confirmed in time",
        **_PROCESSES_ENDED,
    },
    _S.STOPPING: {
        _S.CANCELLED: "its processes ended after it was cancelled",
        **_PROCESSES_ENDED,
    },
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}
"""For each state, those that may follow and what that means. A job may stay in any state that is not final."""


def permits_transition(before: JobState, after: JobState) -> bool:
    """Whether a job may get from one state to another, or stay in it."""
    return (before is after and not before.final) or after in TRANSITIONS[before]
