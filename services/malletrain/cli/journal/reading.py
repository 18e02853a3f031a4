"""Reads the past of an installation as one journal: from copies of its databases, or from its running services.

Nothing is written to the databases, and services may run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import grpc
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.allocator.history.plan_store import PlanStore
from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.caller.credentials import caller_credential
from malletrain.cli.shared.stubs import ServiceStubs, explain
from malletrain.job_manager.machine.jobs import ArraySpec, Dependencies, Job, JobSpec, job_number
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.store import JobStore
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.progress import first_batches
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.monitor.store import MonitorStore
from malletrain.observer.intake import minute_use
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.backup.writing import copy_database
from malletrain.runtime.config import Settings
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.copying import sqlite_file
from malletrain.runtime.database.migrating import check_no_restore
from malletrain.runtime.database.schema_history import SchemaHistory, revision_of
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.job_value_messages import value_from_proto
from malletrain.runtime.messages import job_state_of, terms_of, unix_seconds
from malletrain.runtime.paging import all_pages
from malletrain.simulator.journal.record import BelievedJob, Journal, MeasuredJob, RecordedJob
from malletrain.v1 import allocator_pb2, job_manager_pb2, monitor_pb2, resources_pb2


@dataclass(frozen=True)
class PlanBelief:
    """What one plan, or some that follow each other, believed."""

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

    Raises:
        InvalidInputError: the idle set was never recorded.
    """
    idle = tuple(past.idle())
    if not idle:
        expected = "a past in which the Allocator has recorded idle nodes, as it does from this version on"
        raise InvalidInputError("--journal", expected, place)
    beliefs = past.beliefs()
    utilization = tuple(past.utilization())
    measured = {job_id: job for job_id, job in past.measured() if job.unix_seconds > 0}
    jobs = tuple(past.jobs())
    events: dict[str, list[JobEvent]] = {}
    for event in past.events():
        events.setdefault(event.job_id, []).append(event)
    believed, pools = _read_beliefs(beliefs, {job.id for job in jobs})
    recorded = (
        RecordedJob(job, tuple(events[job.id]), measured.get(job.id), believed.get(job.id))
        for job in jobs
        if job.id in events
    )
    return Journal(idle, tuple(recorded), pools, utilization)


def _read_beliefs(beliefs: Iterator[PlanBelief], wanted: set[str]) -> tuple[dict[str, BelievedJob], frozenset[str]]:
    """What the newest plan with each job believed of it, and the pools of the newest plan."""
    believed: dict[str, BelievedJob] = {}
    pools: Sequence[str] | None = None
    for belief in beliefs:
        pools = belief.pools if pools is None else pools
        for job in belief.jobs:
            identifier = job.job_id if isinstance(job, allocator_pb2.BelievedJob) else job.id
            if identifier in wanted:
                curve = tuple(ScalingPoint(point.nodes, point.rate) for point in job.curve)
                believed[identifier] = BelievedJob(curve, job.scale_up_seconds, job.scale_down_seconds)
                wanted.discard(identifier)
        if not wanted:
            break
    return believed, frozenset(pools or ())


LIVE = "live"
"""What stands in place of a state folder."""
_PAGE_SECONDS = 60.0
_JOBS_ASKED = 500
_CLOCK_SLACK_S = 1e-3
"""Times of jobs are whole nanoseconds, those of the journal are floating-point numbers."""


def read_live(stubs: ServiceStubs) -> Journal:
    """The past of the installation whose services these are.

    Args:
        stubs: Its services; whoever they show a token of may read: the role viewer is enough.

    Raises:
        InvalidInputError: there is nothing in it that could be replayed.
        grpc.RpcError: a service does not answer.
    """
    return journal_of(_LivePast(stubs), "the running services")


class _LivePast:
    """What the services answer, page by page."""

    def __init__(self, stubs: ServiceStubs) -> None:
        self._stubs = stubs
        self._known: dict[str, Job] = {}

    def idle(self) -> Iterator[IdleRow]:
        request = allocator_pb2.ListIdleChangesRequest()
        for page in all_pages(self._stubs.allocator.ListIdleChanges, request, timeout=_PAGE_SECONDS):
            yield from map(idle_row, page.changes)

    def beliefs(self) -> Iterator[PlanBelief]:
        request = allocator_pb2.ListBelievedJobsRequest()
        for page in all_pages(self._stubs.allocator.ListBelievedJobs, request, timeout=_PAGE_SECONDS):
            yield PlanBelief(tuple(page.pools), page.jobs)

    def measured(self) -> Iterator[tuple[str, MeasuredJob]]:
        progress = self._stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=_PAGE_SECONDS).progress
        for first in range(0, len(progress), _JOBS_ASKED):
            some = progress[first : first + _JOBS_ASKED]
            request = monitor_pb2.ListScalingRecordsRequest(job_ids=[entry.job_id for entry in some])
            messages = self._stubs.monitor.ListScalingRecords(request, timeout=_PAGE_SECONDS).records
            records = {record.job_id: record for record in messages}
            for entry in some:
                yield entry.job_id, measured_job(entry, records.get(entry.job_id, monitor_pb2.ScalingRecord()))

    def utilization(self) -> Iterator[MinuteUse]:
        request = allocator_pb2.ListUtilizationRequest()
        try:
            for page in all_pages(self._stubs.allocator.ListUtilization, request, timeout=_PAGE_SECONDS):
                yield from map(minute_use, page.minutes)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # an Allocator of the version before
                raise

    def jobs(self) -> Iterable[Job]:
        request = job_manager_pb2.ListJobsRequest()
        for page in all_pages(self._stubs.job_manager.ListJobs, request, timeout=_PAGE_SECONDS):
            self._known.update((message.id, job_of(message)) for message in page.jobs)
        return self._known.values()

    def events(self) -> Iterator[JobEvent]:
        """Rows that are later than what is known of their job are left out: they come with the next reading."""
        request = job_manager_pb2.ListJobEventsRequest()
        for page in all_pages(self._stubs.job_manager.ListJobEvents, request, timeout=_PAGE_SECONDS):
            for message in page.events:
                job = self._known.get(message.job_id)
                if job is not None and message.unix_seconds <= job.update_time + _CLOCK_SLACK_S:
                    yield event_of(message)


def idle_row(message: allocator_pb2.IdleChange) -> IdleRow:
    """A row of the idle set's history.

    Raises:
        ValueError: its kind is not known.
    """
    kind = allocator_pb2.IdleChangeKind.Name(message.kind).removeprefix("IDLE_CHANGE_KIND_")
    return IdleRow(message.unix_seconds, IdleRowKind(kind), dict(message.joined), tuple(message.left))


def measured_job(progress: monitor_pb2.Progress, record: monitor_pb2.ScalingRecord) -> MeasuredJob:
    """What Monitor has of a job."""
    rescales = tuple(
        MeasuredRescale(entry.from_nodes, entry.to_nodes, entry.stall_seconds, entry.unix_seconds, number)
        for number, entry in enumerate(record.rescales, 1)
    )
    points = tuple(ScalingPoint(point.nodes, point.rate) for point in record.points)
    return MeasuredJob(
        progress.samples,
        progress.samples_lost,
        progress.last_record_unix_seconds,
        points,
        rescales,
        tuple(record.first_batches_unix_seconds),
        record.usual_step_seconds,
    )


def job_of(message: resources_pb2.Job) -> Job:
    """A job with what a replay takes of it: no command, environment, folder or prose."""
    spec = message.spec
    return Job(
        number=job_number(message.id),
        spec=JobSpec(
            **terms_of(spec).terms(),
            name=spec.name,
            command=(),
            working_directory="",
            scale_up_seconds=spec.scale_up_seconds if spec.HasField("scale_up_seconds") else None,
            scale_down_seconds=spec.scale_down_seconds if spec.HasField("scale_down_seconds") else None,
            curve=tuple(ScalingPoint(point.nodes, point.rate) for point in spec.curve),
            target_samples=spec.target_samples,
            family=spec.family,
            burst_buffer_gb=spec.burst_buffer_gb,
            array=ArraySpec(spec.array.max_admitted) if message.array_id else None,
            dependencies=Dependencies(tuple(spec.dependencies.after), tuple(spec.dependencies.after_ok)),
            value=value_from_proto(spec),
        ),
        state=job_state_of(message.state),
        reason="",
        create_time=unix_seconds(message.create_time),
        update_time=unix_seconds(message.update_time),
        samples=message.samples,
        restarts=message.restarts,
        owner=message.owner,
        fleet_number=int(message.fleet_id[1:]) if message.fleet_id else None,
        array_number=int(message.array_id[1:]) if message.array_id else None,
    )


def event_of(message: job_manager_pb2.JobEvent) -> JobEvent:
    """A row of JobManager's journal, without its prose."""
    return JobEvent(
        message.unix_seconds,
        message.job_id,
        job_state_of(message.from_state) if message.from_state else None,
        job_state_of(message.to_state),
        _reason(message.reason_code),
        "",
        tuple(message.nodes),
        message.release_seconds,
    )


def _reason(value: resources_pb2.JobReason.ValueType) -> JobReason:
    """A reason code; UNSPECIFIED for those of later versions."""
    known = resources_pb2.JobReason.Name(value) if value in resources_pb2.JobReason.values() else ""
    name = known.removeprefix("JOB_REASON_")
    return JobReason(name) if name in JobReason.__members__ else JobReason.UNSPECIFIED


def read_journal(place: str, settings: Settings) -> Journal:
    """The past of an installation.

    Args:
        place: Its state folder, or `live`: the services of the settings. Databases on PostgreSQL are read if the folder
            is that of the settings.
        settings: Settings that are in force here.

    Raises:
        InvalidInputError: it is no state folder, or there is nothing in it that could be replayed.
        SchemaVersionError: a later version wrote it.
        MalleTrainError: a database can't be read, a restore was interrupted, or a service does not answer.
    """
    if place != LIVE:
        return read_stored(place, settings)
    return read_from_services(settings, caller_credential(settings))


def read_from_services(settings: Settings, credential: Credential) -> Journal:
    """The past of a running installation.

    Raises:
        InvalidInputError: there is nothing in it that could be replayed.
        MalleTrainError: a service does not answer, or is of a later version.
    """
    stubs = ServiceStubs(settings, credential)
    try:
        return read_live(stubs)
    except grpc.RpcError as error:
        raise explain(error) from error
    except InvalidInputError:
        raise
    except ValueError as error:
        raise MalleTrainError(f"the services tell what this version does not know: {error}") from error
    finally:
        stubs.close()


_SERVICES = ("allocator", "monitor", "job_manager")
"""Who refers to jobs is copied before JobManager, which numbers them."""
_ROWS = 10_000
_USED = "a state folder that services have used"


def read_stored(state_dir: str, settings: Settings) -> Journal:
    """The past of an installation.

    Args:
        state_dir: Its state folder. Databases on PostgreSQL are read if it is that of the settings.
        settings: Settings that are in force here.

    Raises:
        InvalidInputError: it is no state folder, or there is nothing in it that could be replayed.
        SchemaVersionError: a later version wrote it.
        MalleTrainError: a database can't be read, or a restore was interrupted.
    """
    addresses = _addresses(state_dir, settings)
    with TemporaryDirectory(prefix="malletrain-journal-") as folder, _readable(state_dir):
        engines = {address.service: _copy(address, Path(folder)) for address in addresses}
        return journal_of(_StoredPast(engines), state_dir)


def _addresses(state_dir: str, settings: Settings) -> list[DatabaseAddress]:
    if "://" in state_dir:
        expected = (
            "a folder; for databases on PostgreSQL the state_dir of the settings that name them (./malletrain.toml)"
        )
        raise InvalidInputError("--journal", expected)
    path = Path(state_dir)
    if not path.is_dir():
        raise InvalidInputError("--journal", _USED, state_dir)
    check_no_restore(path)
    if path.resolve() == settings.state_dir.resolve():
        return [settings.database(service) for service in _SERVICES]
    return [DatabaseAddress(service, path) for service in _SERVICES]


@contextmanager
def _readable(state_dir: str) -> Iterator[None]:
    try:
        yield
    except MalleTrainError:
        raise
    except (sqlite3.Error, SQLAlchemyError, OSError, ValueError) as error:
        raise MalleTrainError(f"the journal in {state_dir} can't be read: {error}") from error


def _copy(address: DatabaseAddress, folder: Path) -> Engine:
    """A copy with the tables of this version."""
    copy = folder / f"{address.service}.sqlite"
    if not copy_database(address, copy):
        raise InvalidInputError("--journal", f"{_USED}; {address} is missing", str(address.state_dir))
    engine, history = sqlite_file(copy), SchemaHistory(address.service)
    with engine.begin() as connection:
        revision = revision_of(connection)
        history.check(revision, address)
        if revision != history.newest:
            history.upgrade(connection)
    return engine


class _StoredPast:
    """What is in copies of the databases."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._engines = engines
        self._jobs = JobStore(engines["job_manager"])

    def idle(self) -> Iterable[IdleRow]:
        return IdleStore(self._engines["allocator"], 0).rows()

    def beliefs(self) -> Iterator[PlanBelief]:
        for plan in PlanStore(self._engines["allocator"], 1).newest_first():
            yield PlanBelief(tuple(part.pool for part in plan.parts), plan.problem.jobs)

    def measured(self) -> Iterator[tuple[str, MeasuredJob]]:
        for job in MonitorStore(self._engines["monitor"]).load():
            yield (
                job.job_id,
                MeasuredJob(
                    job.progress.samples,
                    job.progress.samples_lost,
                    job.progress.last_record_unix_seconds,
                    tuple(ScalingPoint(point.nodes, point.rate) for point in job.points),
                    job.rescales,
                    first_batches(job.reporters.values()),
                    job.usual_step_seconds,
                ),
            )

    def utilization(self) -> Iterable[MinuteUse]:
        return UtilizationStore(self._engines["allocator"]).since(0.0)

    def jobs(self) -> Iterator[Job]:
        last = 0
        while page := self._jobs.jobs(last, _ROWS, ()):
            yield from page
            last = page[-1].number

    def events(self) -> Iterator[JobEvent]:
        last = 0
        while page := self._jobs.events(last, _ROWS, None):
            yield from (stored.event for stored in page)
            last = page[-1].sequence
