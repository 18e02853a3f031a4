"""What the outside world must be made to do; each is safe to ask for again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from malletrain.job_manager.jobs import Job
from malletrain.job_manager.world import Policy


@dataclass(frozen=True)
class StartSupervisor:
    """There must be a supervisor of this incarnation, and it must be watched."""

    job_id: str
    incarnation: int


@dataclass(frozen=True)
class SetHosts:
    """The supervisor must take over these nodes."""

    job_id: str
    incarnation: int
    sequence: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseHosts:
    """No process of the job may be left on these nodes after `grace_seconds`."""

    job_id: str
    incarnation: int
    nodes: tuple[str, ...]
    grace_seconds: float


@dataclass(frozen=True)
class StopSupervisor:
    """The workers must commit, save and end within `grace_seconds`, and the supervisor after them."""

    job_id: str
    incarnation: int
    grace_seconds: float


Effect = StartSupervisor | SetHosts | ReleaseHosts | StopSupervisor


def required_effects(jobs: Iterable[Job], policy: Policy) -> tuple[Effect, ...]:
    """What is still to be done about jobs, as their fields stand: nothing has to be remembered between calls.

    Releases come before everything else: the node's owner waits for them.
    """
    supervised = [job for job in jobs if job.supervised]
    releases = [effect for job in supervised for effect in _releases(job, policy)]
    return (*releases, *(effect for job in supervised for effect in _others(job, policy)))


def _releases(job: Job, policy: Policy) -> list[Effect]:
    ordered = sorted(job.releases, key=lambda release: (release.since, release.node))
    return [
        ReleaseHosts(job.id, job.incarnation, tuple(release.node for release in group), policy.drain_grace_seconds)
        for _, group in groupby(ordered, key=lambda release: release.since)
    ]


def _others(job: Job, policy: Policy) -> list[Effect]:
    effects: list[Effect] = []
    if not job.serving:
        effects.append(StartSupervisor(job.id, job.incarnation))
    if job.stop is not None:
        effects.append(StopSupervisor(job.id, job.incarnation, policy.stop_grace_seconds))
    elif job.serving and job.sequence > job.taken_sequence:
        effects.append(SetHosts(job.id, job.incarnation, job.sequence, job.commanded))
    return effects
