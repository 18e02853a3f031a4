"""Effects: what has to be done outside the state machine. Each of them may be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from malletrain.common.job_limits import JobLimits
from malletrain.job_manager.machine.job_marks import requires_commands
from malletrain.job_manager.machine.jobs import Job, StopIntent
from malletrain.job_manager.machine.state import ManagerPolicy


@dataclass(frozen=True)
class StartSupervisor:
    """A supervisor of this incarnation must run, and its state must be followed."""

    job_id: str
    incarnation: int


@dataclass(frozen=True)
class SetHosts:
    """The supervisor must be told to use these nodes."""

    job_id: str
    incarnation: int
    sequence: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseHosts:
    """The job's processes on these nodes must end within `grace_seconds`, or be killed then."""

    job_id: str
    incarnation: int
    nodes: tuple[str, ...]
    grace_seconds: float


@dataclass(frozen=True)
class StopSupervisor:
    """The workers must commit, save and end within `grace_seconds`, or be killed; its supervisor follows.

    Attributes:
        keep_seconds: How long the supervisor stays and waits for nodes; 0: it ends at once.
        sequence: Number of the newest command about nodes, which the stop overtakes.
    """

    job_id: str
    incarnation: int
    grace_seconds: float
    keep_seconds: float = 0.0
    sequence: int = 0


Effect = StartSupervisor | SetHosts | ReleaseHosts | StopSupervisor


def is_recorded(effect: Effect, stored: Mapping[str, Job]) -> bool:
    """Whether an effect may begin: the change that requires it is stored. Releases need no record and never wait.

    Args:
        stored: Jobs as they were last stored.
    """
    if isinstance(effect, ReleaseHosts):
        return True
    job = stored.get(effect.job_id)
    if job is None or job.incarnation != effect.incarnation:
        return False
    match effect:
        case SetHosts(sequence=sequence):
            return job.sequence >= sequence
        case StopSupervisor():
            return job.stop is not None
        case StartSupervisor():
            return job.has_supervisor


def is_pending(stop: StopSupervisor, jobs: Mapping[str, Job]) -> bool:
    """Whether a stop is still wanted: the supervisor has neither stayed nor been commanded anew.

    Args:
        jobs: The active jobs as they are now.
    """
    job = jobs.get(stop.job_id)
    return (
        job is not None
        and job.incarnation == stop.incarnation
        and job.stop is not None
        and job.sequence == stop.sequence
    )


def may_precede_record(effect: Effect, stored: Mapping[str, Job]) -> bool:
    """Whether an effect may begin without a record while the database does not answer.

    What only takes nodes from a job may: were the change lost, the next JobManager would find the node gone and do the
    same. What gives a job nodes may not: the next JobManager could give them to another.

    Args:
        stored: Jobs as they were last stored.
    """
    match effect:
        case ReleaseHosts() | StopSupervisor():
            return True
        case SetHosts(job_id, incarnation, _, nodes):
            job = stored.get(job_id)
            return job is not None and job.incarnation == incarnation and set(nodes) <= set(job.commanded)
        case StartSupervisor():
            return False


def required_effects(jobs: Iterable[Job], policy: ManagerPolicy) -> tuple[Effect, ...]:
    """All effects that follow from the fields of jobs, whether they were performed before or not.

    Releases come first, since the main scheduler waits for them.
    """
    supervised = [job for job in jobs if requires_commands(job)]
    releases = [effect for job in supervised for effect in _releases(job, policy)]
    return (*releases, *(effect for job in supervised for effect in _others(job, policy)))


def _releases(job: Job, policy: ManagerPolicy) -> list[Effect]:
    # The nodes that left first come first, as the main scheduler waits longest for them; those of one moment together.
    ordered = sorted(job.releases, key=lambda release: (release.since, release.node))
    grace = _release_grace(job.spec.limits, policy)
    return [
        ReleaseHosts(job.id, job.incarnation, tuple(release.node for release in group), grace)
        for _, group in groupby(ordered, key=lambda release: release.since)
    ]


def _others(job: Job, policy: ManagerPolicy) -> list[Effect]:
    effects: list[Effect] = []
    if not job.serving:
        effects.append(StartSupervisor(job.id, job.incarnation))
    if job.stop is not None:
        effects.append(_stop(job, policy))
    elif job.serving and job.sequence > job.taken_sequence:
        effects.append(SetHosts(job.id, job.incarnation, job.sequence, job.commanded))
    return effects


def stop_grace(job: Job, policy: ManagerPolicy) -> float:
    """How long a job that is stopped gets to save, in seconds: as on nodes that are released, if that is longer."""
    return max(policy.stop_grace_seconds, _release_grace(job.spec.limits, policy))


def _stop(job: Job, policy: ManagerPolicy) -> StopSupervisor:
    grace = stop_grace(job, policy)
    if job.stop is not StopIntent.WAIT or not policy.keep_supervisor_seconds:
        return StopSupervisor(job.id, job.incarnation, grace)
    return StopSupervisor(job.id, job.incarnation, grace, policy.keep_supervisor_seconds, job.sequence)


def _release_grace(limits: JobLimits, policy: ManagerPolicy) -> float:
    """How long a job's workers on a node that is released get, in seconds.

    The operator may have lowered the bound since the job was submitted.
    """
    if not limits.release_grace_seconds:
        return policy.drain_grace_seconds
    return min(limits.release_grace_seconds, policy.longest_release_grace_seconds)
