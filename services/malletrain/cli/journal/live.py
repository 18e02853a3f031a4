"""Reads the past of a running installation from its services. What is secret of jobs is neither asked for nor kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import grpc

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.cli.journal.assembling import PlanBelief, journal_of
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.job_manager.machine.jobs import ArraySpec, Dependencies, Job, JobSpec, job_number
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.runtime.job_value_messages import value_from_proto
from malletrain.runtime.messages import job_state_of, terms_of, unix_seconds
from malletrain.runtime.paging import all_pages
from malletrain.simulator.journal.record import Journal, MeasuredJob
from malletrain.v1 import allocator_pb2, job_manager_pb2, monitor_pb2, resources_pb2

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
            found = self._stubs.monitor.ListScalingRecords(request, timeout=_PAGE_SECONDS).records
            records = {record.job_id: record for record in found}
            for entry in some:
                yield entry.job_id, measured_job(entry, records.get(entry.job_id, monitor_pb2.ScalingRecord()))

    def utilization(self) -> Iterator[MinuteUse]:
        request = allocator_pb2.ListUtilizationRequest()
        try:
            for page in all_pages(self._stubs.allocator.ListUtilization, request, timeout=_PAGE_SECONDS):
                yield from map(minute_of, page.minutes)
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


def minute_of(message: allocator_pb2.UtilizationMinute) -> MinuteUse:
    """U of a minute."""
    return MinuteUse(
        float(message.unix_seconds),
        message.nodes,
        message.trained_samples,
        message.free_samples,
        message.static_samples,
    )


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
