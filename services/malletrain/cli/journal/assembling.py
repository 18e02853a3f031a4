"""One journal of what is recorded, wherever that is read: copies of databases, or the running services."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import JobEvent
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.journal.record import BelievedJob, Journal, MeasuredJob, RecordedJob
from malletrain.v1 import allocator_pb2


@dataclass(frozen=True)
class PlanBelief:
    """What one plan, or some that follow each other, believed.

    Attributes:
        pools: Names of the pools.
        jobs: Jobs with their curves and stalls.
    """

    pools: Sequence[str]
    jobs: Iterable[allocator_pb2.JobDemand | allocator_pb2.BelievedJob]


class RecordedPast(Protocol):
    """What the services have recorded. It is read in this order, so that who refers to jobs comes before them."""

    def idle(self) -> Iterable[IdleRow]:
        """Changes of the idle set, oldest first."""

    def beliefs(self) -> Iterator[PlanBelief]:
        """What plans believed, the newest first."""

    def measured(self) -> Iterable[tuple[str, MeasuredJob]]:
        """What Monitor has of jobs, by identifier."""

    def utilization(self) -> Iterable[MinuteUse]:
        """U by minute, oldest first."""

    def jobs(self) -> Iterable[Job]:
        """Jobs in the order of their submission."""

    def events(self) -> Iterable[JobEvent]:
        """Rows of JobManager's journal, oldest first."""


def journal_of(past: RecordedPast, place: str) -> Journal:
    """The past of an installation.

    Args:
        past: Where it is recorded.
        place: What to call that.

    Raises:
        InvalidInputError: the idle set was never recorded.
    """
    idle = tuple(past.idle())
    if not idle:
        expected = "a past in which the Allocator has recorded idle nodes, as it does from this version on"
        raise InvalidInputError("--journal", expected, place)
    beliefs = past.beliefs()
    utilization = tuple(past.utilization())
    measured = {job_id: found for job_id, found in past.measured() if found.unix_seconds > 0}
    jobs = tuple(past.jobs())
    events: dict[str, list[JobEvent]] = {}
    for event in past.events():
        events.setdefault(event.job_id, []).append(event)
    believed, pools = _believed(beliefs, {job.id for job in jobs})
    recorded = (
        RecordedJob(job, tuple(events[job.id]), measured.get(job.id), believed.get(job.id))
        for job in jobs
        if job.id in events
    )
    return Journal(idle, tuple(recorded), pools, utilization)


def _believed(beliefs: Iterator[PlanBelief], wanted: set[str]) -> tuple[dict[str, BelievedJob], frozenset[str]]:
    """What the newest plan with each job believed of it, and the pools of the newest plan."""
    found: dict[str, BelievedJob] = {}
    pools: Sequence[str] | None = None
    for belief in beliefs:
        pools = belief.pools if pools is None else pools
        for job in belief.jobs:
            identifier = job.job_id if isinstance(job, allocator_pb2.BelievedJob) else job.id
            if identifier in wanted:
                curve = tuple(ScalingPoint(point.nodes, point.rate) for point in job.curve)
                found[identifier] = BelievedJob(curve, job.scale_up_seconds, job.scale_down_seconds)
                wanted.discard(identifier)
        if not wanted:
            break
    return found, frozenset(pools or ())
