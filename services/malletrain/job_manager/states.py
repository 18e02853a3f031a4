"""Where a job can stand, and how it gets from one state to another."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """States of a job; the names are those of `malletrain.v1.JobState` without their prefix."""

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
        """Whether a job stays here for ever."""
        return self in _FINAL


class IllegalTransitionError(RuntimeError):
    """A transition that the table does not know: a fault of the program, never of its input."""


_S = JobState
_FINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
_ENDED = {
    _S.WAITING: "its processes ended: stopped for now, or restarted after a failure",
    _S.COMPLETED: "the trainer said so, or the target was reached",
    _S.FAILED: "its processes failed once more than it may be restarted",
}

TRANSITIONS: dict[JobState, dict[JobState, str]] = {
    _S.QUEUED: {
        _S.WAITING: "admitted, first come first served",
        _S.CANCELLED: "cancelled before it was admitted",
    },
    _S.WAITING: {
        _S.STARTING: "a plan gave it nodes, and they are free",
        _S.COMPLETED: "its target turns out to be reached",
        _S.CANCELLED: "cancelled while it had no processes",
    },
    _S.STARTING: {
        _S.RUNNING: "the first scale is confirmed",
        _S.STOPPING: "its nodes are taken away, it is cancelled, or it does not come up in time",
        **_ENDED,
    },
    _S.RUNNING: {
        _S.RESCALING: "a change of scale is commanded",
        _S.STOPPING: "no nodes are left for it, it is cancelled, it reached its target, or it stalls",
        **_ENDED,
    },
    _S.RESCALING: {
        _S.RUNNING: "the new scale is confirmed",
        _S.STOPPING: "no nodes are left for it, it is cancelled, or the new scale is not confirmed in time",
        **_ENDED,
    },
    _S.STOPPING: {
        _S.CANCELLED: "its processes ended after it was cancelled",
        **_ENDED,
    },
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}
"""For each state, those that may follow and what that means. Staying in a state that is not final is always allowed."""


def check_transition(before: JobState, after: JobState) -> None:
    """Refuse a transition that the table does not know.

    Raises:
        IllegalTransitionError: there is no such transition.
    """
    if (before == after and not before.final) or after in TRANSITIONS[before]:
        return
    raise IllegalTransitionError(f"no transition from {before} to {after}")
