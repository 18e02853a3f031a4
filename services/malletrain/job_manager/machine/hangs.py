"""When a job is presumed to hang, and why. Pure.

Silence is no fault: a script may evaluate, save, load data or compile for long. It takes evidence: a limit of the job
itself is exceeded, or its processes do nothing for minutes (`malletrain.common.activity`) while no batch comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from malletrain.common.job_limits import PHASE_SECONDS, JobLimits
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Progressed

_GROWTH_DEADLINE_FACTOR = 5.0
_MAX_DOUBLINGS = 3


@dataclass(frozen=True)
class Limit:
    """How long something may take.

    Attributes:
        what: What, in words.
        seconds: How long.
        is_own: Whether the job says so itself. It then holds in place of what we make of processes that do nothing.
    """

    what: str
    seconds: float
    is_own: bool


def limit_of(phase: str, limits: JobLimits) -> Limit:
    """The limit of a phase that a script has declared; empty: of a step."""
    match phase:
        case "start":
            return Limit("a start", limits.start, limits.start_seconds > 0)
        case "evaluate":
            return Limit("an evaluation", limits.evaluation, limits.evaluation_seconds > 0)
        case "save":
            return Limit("a save", limits.save, limits.save_seconds > 0)
        case _:
            return Limit("a step", limits.step, limits.step_seconds > 0)


def is_long(job: Job, seen: Progressed) -> bool:
    """Whether a job has been without a batch for longer than usual, or for as long as it allows itself."""
    own = limit_of(seen.phase, job.spec.limits)
    return seen.stalled or (own.is_own and seen.seconds >= own.seconds)


def presumed_hang(job: Job, policy: ManagerPolicy, now: float) -> str | None:
    """Why a job that trains is presumed to hang; None: it is not.

    Args:
        job: A job in state RUNNING.
        policy: How long processes must do nothing.
        now: Seconds since the epoch.
    """
    since = job.phase_since if job.phase else job.stalled_since
    if since is None:
        # Batches still come, or none ever came: only processes that have been idle since the start say something.
        idle = _idle_seconds(job, job.changed_at, now)
        longest = job.spec.limits.start
        return f"its processes have done nothing for {idle:.0f} s" if idle >= longest else None
    limit, silent = limit_of(job.phase, job.spec.limits), now - since
    if silent >= limit.seconds:
        if job.phase:
            return (
                f"it has been in the phase {job.phase} for {silent:.0f} s; its limit of {limit.what} is "
                f"{limit.seconds:g} s"
            )
        return f"no batch has ended for {silent:.0f} s; its limit of {limit.what} is {limit.seconds:g} s"
    return _evidence(job, policy, since, now, is_own=limit.is_own, is_declared=bool(job.phase))


def hang_limit(job: Job, policy: ManagerPolicy) -> float:
    """From when on `presumed_hang` has a reason, as things are, in seconds since the epoch; infinity: never."""
    since = job.phase_since if job.phase else job.stalled_since
    if since is None:
        return inf if job.idle_since is None else max(job.changed_at, job.idle_since) + job.spec.limits.start
    limit = limit_of(job.phase, job.spec.limits)
    evident = _evident_at(job, policy, since, is_own=limit.is_own, is_declared=bool(job.phase))
    return min(since + limit.seconds, evident)


def late_change(job: Job, policy: ManagerPolicy, now: float) -> str | None:
    """Why a start or a change of scale that is not confirmed is given up; None: it is not.

    Args:
        job: A job with processes in another state than RUNNING.
        policy: From when on it may be, and how long processes must do nothing.
        now: Seconds since the epoch.
    """
    late, scale = now - job.changed_at, job.in_words(len(job.commanded))
    if now >= change_deadline(job, policy):
        return f"scale of {scale} not confirmed within {change_deadline(job, policy) - job.changed_at:g} s"
    if late < _usual_change(job, policy):
        return None
    own = job.spec.limits.start_seconds > 0
    evidence = _evidence(job, policy, job.changed_at, now, is_own=own, is_declared=False)
    return None if evidence is None else f"scale of {scale} not confirmed: {evidence}"


def change_limit(job: Job, policy: ManagerPolicy) -> float:
    """From when on `late_change` has a reason, as things are, in seconds since the epoch."""
    own = job.spec.limits.start_seconds > 0
    evident = _evident_at(job, policy, job.changed_at, is_own=own, is_declared=False)
    return min(change_deadline(job, policy), max(job.changed_at + _usual_change(job, policy), evident))


def change_deadline(job: Job, policy: ManagerPolicy) -> float:
    """When a change of scale is given up at the latest, in seconds since the epoch.

    One that goes on training while its new workers boot is not ended for a short limit of a start.
    """
    usual = _usual_change(job, policy)
    own = job.spec.limits.start_seconds
    if own:
        return job.changed_at + (max(own, usual) if _trains_on(job) else own)
    return job.changed_at + max(PHASE_SECONDS, usual)


def _usual_change(job: Job, policy: ManagerPolicy) -> float:
    """Seconds within which a change is usually confirmed. It is longer if the job trains on while new workers boot.

    It doubles with every counted failure: on slow nodes, the same time would end one boot after the other.
    """
    patience = 2.0 ** min(job.counted_failures, _MAX_DOUBLINGS)
    return policy.rescale_deadline_seconds * patience * (_GROWTH_DEADLINE_FACTOR if _trains_on(job) else 1.0)


def _trains_on(job: Job) -> bool:
    return job.stalled_since is None and bool(job.confirmed) and set(job.confirmed) < set(job.commanded)


def _evidence(
    job: Job, policy: ManagerPolicy, since: float, now: float, *, is_own: bool, is_declared: bool
) -> str | None:
    """What speaks for a hang in a silence; None: nothing.

    Args:
        policy: How long processes must do nothing.
        since: When the silence began, in seconds since the epoch.
        now: Seconds since the epoch.
        is_own: Whether a limit of the job's own runs.
        is_declared: Whether the script has said what it does.
    """
    idle = _idle_seconds(job, since, now)
    if job.deadlocked and not is_declared and idle >= policy.stall_seconds:
        return f"its processes have waited for each other for {idle:.0f} s"
    if not is_own and idle >= policy.idle_seconds:
        return f"its processes have done nothing for {idle:.0f} s"
    return None


def _evident_at(job: Job, policy: ManagerPolicy, since: float, *, is_own: bool, is_declared: bool) -> float:
    """From when on `_evidence` has something, in seconds since the epoch; infinity: never. Arguments as there."""
    if job.idle_since is None:
        return inf
    waits = [policy.stall_seconds] if job.deadlocked and not is_declared else []
    waits += [] if is_own else [policy.idle_seconds]
    return max(since, job.idle_since) + min(waits, default=inf)


def _idle_seconds(job: Job, since: float, now: float) -> float:
    return -1.0 if job.idle_since is None else now - max(since, job.idle_since)


def without_evidence(job: Job) -> Job:
    """A job as it was stored, without what spoke for a hang: it is told anew, and may be over since."""
    return replace(job, stalled_since=None, idle_since=None, deadlocked=False, phase="", phase_since=None)
