"""Messages of `malletrain.v1` made from JobManager's values, and pages of listings."""

from __future__ import annotations

from dataclasses import asdict

from malletrain.job_manager.burst_buffer import QuotaUse
from malletrain.job_manager.jobs import Job, JobSpec
from malletrain.job_manager.redaction import redact_environment
from malletrain.job_manager.sharing import OwnerShare
from malletrain.job_manager.state import Omission
from malletrain.job_manager.store import StoredEvent
from malletrain.job_manager.transitions import JobReason
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import spec_to_proto
from malletrain.runtime.messages import job_state_value, timestamp
from malletrain.v1 import job_manager_pb2, resources_pb2

_LARGEST_PAGE = 1000
_SUBMITTED = resources_pb2.JOB_STATE_UNSPECIFIED


def reason_value(code: JobReason) -> resources_pb2.JobReason.ValueType:
    """The protobuf value of a reason."""
    return resources_pb2.JobReason.Value(f"JOB_REASON_{code.value}")


def spec_message(spec: JobSpec) -> resources_pb2.JobSpec:
    """A spec with its defaults filled in, without the values of variables that look like secrets."""
    return resources_pb2.JobSpec(
        name=spec.name,
        command=spec.command,
        working_directory=spec.working_directory,
        environment=redact_environment(spec.environment),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        permitted_nodes=spec.permitted_nodes,
        slots_per_node=spec.slots_per_node,
        scale_up_seconds=spec.scale_up_seconds,
        scale_down_seconds=spec.scale_down_seconds,
        curve=[resources_pb2.ScalingPoint(nodes=point.nodes, rate=point.rate) for point in spec.curve],
        weight=spec.weight,
        target_samples=spec.target_samples,
        max_restarts=spec.max_restarts,
        profile=resources_pb2.ProfileMode.Value(f"PROFILE_MODE_{spec.profile.value}"),
        family=spec.family,
        backend=resources_pb2.LauncherBackend.Value(f"LAUNCHER_BACKEND_{spec.backend.value}"),
        cold_start=spec.cold_start,
        burst_buffer_gb=spec.burst_buffer_gb,
        fleet=None if spec.fleet is None else spec_to_proto(spec.fleet),
    )


def job_message(job: Job, supervisor_version: str = "") -> resources_pb2.Job:
    """A job.

    Args:
        job: The job.
        supervisor_version: Version of MalleTrain that its supervisor runs; empty where none is known.
    """
    return resources_pb2.Job(
        id=job.id,
        owner=job.owner,
        share_weight=job.share_weight,
        supervisor_version=supervisor_version,
        spec=spec_message(job.spec),
        state=job_state_value(job.state),
        reason_code=reason_value(job.reason_code),
        reason=job.reason,
        create_time=timestamp(job.create_time),
        update_time=timestamp(job.update_time),
        admitted=job.admitted,
        wanted_nodes=job.wanted,
        commanded_nodes=job.commanded,
        confirmed_nodes=job.confirmed,
        plan_generation=job.plan_generation,
        restarts=job.restarts,
        samples=job.samples,
        rescales=job.rescales,
        preemptions=job.preemptions,
        metrics=job.metrics,
        start_time=None if job.start_time is None else timestamp(job.start_time),
        end_time=None if job.end_time is None else timestamp(job.end_time),
        not_before=None if job.not_before is None else timestamp(job.not_before),
        passed_over=job.passed_over,
        fleet_id=job.fleet_id,
    )


def event_message(stored: StoredEvent) -> job_manager_pb2.JobEvent:
    """A row of the journal."""
    event = stored.event
    return job_manager_pb2.JobEvent(
        sequence=stored.sequence,
        unix_seconds=event.unix_seconds,
        job_id=event.job_id,
        from_state=_SUBMITTED if event.from_state is None else job_state_value(event.from_state),
        to_state=job_state_value(event.to_state),
        reason_code=reason_value(event.reason_code),
        reason=event.reason,
        nodes=event.nodes,
        release_seconds=event.release_seconds,
    )


def quota_message(use: QuotaUse) -> job_manager_pb2.BurstBufferQuota:
    """The quota of burst buffer."""
    return job_manager_pb2.BurstBufferQuota(granted_gb=use.granted_gb, held_gb=use.held_gb, free_gb=use.free_gb)


def owner_message(share: OwnerShare) -> job_manager_pb2.OwnerShare:
    """What an owner uses and has used."""
    return job_manager_pb2.OwnerShare(**asdict(share))


def omission_message(omission: Omission) -> job_manager_pb2.PlanOmission:
    """What of a plan was left out."""
    return job_manager_pb2.PlanOmission(job_id=omission.job_id, nodes=omission.nodes, reason=omission.reason)


def page_size(asked: int) -> int:
    """Entries of a page, from the size that was asked for; 0 means the largest.

    Raises:
        InvalidInputError: the size is out of range.
    """
    if not 0 <= asked <= _LARGEST_PAGE:
        raise InvalidInputError("page_size", f"0 to {_LARGEST_PAGE}", asked)
    return asked or _LARGEST_PAGE


def position(token: str) -> int:
    """The number after which the page with a token begins; 0 for the first page.

    Raises:
        InvalidInputError: no page has returned this token.
    """
    if not token:
        return 0
    if not token.isascii() or not token.isdigit() or len(token) > 18:
        raise InvalidInputError("page_token", "the next_page_token of the page before", token)
    return int(token)
