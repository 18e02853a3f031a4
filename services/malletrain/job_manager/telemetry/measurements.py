"""What one change of the state amounts to in figures: a comparison of before and after. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState

_CHANGING = (JobState.STARTING, JobState.RESCALING)


@dataclass(frozen=True)
class Measurements:
    """Figures of one change. Times are in seconds.

    Attributes:
        submitted: Jobs that were submitted.
        ended: Jobs by the final state that they reached.
        queue_waits: How long jobs that were started for the first time had waited since their submission.
        scale_changes: Pairs of what was confirmed, `start` or `rescale`, and how long that took since its command.
        rescales: Commanded rescales by cause: `plan` or `preemption`.
        preemptions: Times that the main scheduler took nodes from a job.
        restarts: Starts after a failure.
        releases: For each node that the main scheduler took: how long it took until no process of ours was left there.
    """

    submitted: int = 0
    ended: Mapping[JobState, int] = field(default_factory=dict)
    queue_waits: tuple[float, ...] = ()
    scale_changes: tuple[tuple[str, float], ...] = ()
    rescales: Mapping[str, int] = field(default_factory=dict)
    preemptions: int = 0
    restarts: int = 0
    releases: tuple[float, ...] = ()


def measure(before: ManagerState, result: TransactionResult, now: float) -> Measurements:
    """The figures of one transaction.

    Args:
        before: The state before.
        now: Time of the transaction, in seconds since the epoch.
    """
    pairs = [(before.jobs.get(job.id), job) for job in result.changed]
    known = [(old, new) for old, new in pairs if old is not None]
    return Measurements(
        submitted=len(pairs) - len(known),
        ended=Counter(new.state for _, new in pairs if new.state.final),
        queue_waits=tuple(max(0.0, now - new.create_time) for old, new in known if _first_start(old, new)),
        scale_changes=_scale_changes(before, result, now),
        rescales=_rescales(known),
        preemptions=sum(new.preemptions - old.preemptions for old, new in known),
        restarts=sum(new.restarts - old.restarts for old, new in known),
        releases=tuple(row.release_seconds for row in result.events if row.reason_code is JobReason.NODE_RELEASED),
    )


def _first_start(old: Job, new: Job) -> bool:
    return old.incarnation == 0 and new.incarnation > 0


def _scale_changes(before: ManagerState, result: TransactionResult, now: float) -> tuple[tuple[str, float], ...]:
    changes = []
    for row in result.events:
        old = before.jobs.get(row.job_id)
        if old is not None and row.to_state is JobState.RUNNING and row.from_state in _CHANGING:
            kind = "start" if row.from_state is JobState.STARTING else "rescale"
            changes.append((kind, max(0.0, now - old.changed_at)))
    return tuple(changes)


def _rescales(known: list[tuple[Job, Job]]) -> Mapping[str, int]:
    causes: Counter[str] = Counter()
    for old, new in known:
        if new.rescales > old.rescales:
            cause = "preemption" if new.preemptions > old.preemptions else "plan"
            causes[cause] += new.rescales - old.rescales
    return causes
