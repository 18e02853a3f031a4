"""Messages of `malletrain.v1` made from JobManager's values, and pages of listings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from malletrain.common.job_limits import DEFAULT_LIMITS
from malletrain.job_manager.machine.burst_buffer import QuotaUse
from malletrain.job_manager.machine.jobs import Dependencies, Job, JobSpec
from malletrain.job_manager.machine.sharing import OwnerShare
from malletrain.job_manager.machine.state import Omission
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.redaction import redact_environment
from malletrain.job_manager.storage.store import StoredEvent
from malletrain.job_manager.storage.usage_query import UsageKey
from malletrain.job_manager.usage_report import UsageEntry
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import spec_to_proto
from malletrain.runtime.job_value_messages import value_to_proto
from malletrain.runtime.messages import job_state_value, timestamp
from malletrain.runtime.node_needs_messages import needs_to_proto
from malletrain.runtime.topology_messages import preference_to_proto
from malletrain.v1 import job_manager_pb2, resources_pb2

MAX_PAGE = 1000
_SUBMITTED = resources_pb2.JOB_STATE_UNSPECIFIED
_USAGE_KEYS = {job_manager_pb2.UsageKey.Value(f"USAGE_KEY_{key.name}"): key for key in UsageKey}


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
        limits=None if spec.limits == DEFAULT_LIMITS else resources_pb2.JobLimits(**asdict(spec.limits)),
        launch_note=spec.launch_note,
        project=spec.project,
        needs=needs_to_proto(spec.needs),
        topology=preference_to_proto(spec.topology),
        topology_level=spec.topology_level,
        array=None if spec.array is None else resources_pb2.ArraySpec(max_admitted=spec.array.max_admitted),
        array_parameters=spec.array_parameters,
        nodes_per_replica=spec.nodes_per_replica if spec.nodes_per_replica > 1 else 0,
        dependencies=_dependencies_message(spec.dependencies),
        value=value_to_proto(spec.value),
    )


def _dependencies_message(dependencies: Dependencies) -> resources_pb2.Dependencies | None:
    return resources_pb2.Dependencies(**asdict(dependencies)) if dependencies else None


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
        spec=spec_message(job.usable_spec),
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
        scale_command=None if job.scale_command is None else resources_pb2.ScaleCommand(**asdict(job.scale_command)),
        samples_known=job.samples_known,
        saves_fail=bool(job.save_error),
        save_error=job.save_error,
        last_failure=job.last_failure,
        left_out_scales=job.left_out_scales,
        array_id=job.array_id,
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


def usage_keys(values: Sequence[job_manager_pb2.UsageKey.ValueType]) -> list[UsageKey]:
    """By what usage is asked for.

    Raises:
        InvalidInputError: a value is none, or comes twice.
    """
    found: list[UsageKey] = []
    for index, value in enumerate(values):
        if value not in _USAGE_KEYS or _USAGE_KEYS[value] in found:
            raise InvalidInputError(f"group_by[{index}]", "a key of UsageKey, each once at most", value)
        found.append(_USAGE_KEYS[value])
    return found


def usage_message(entry: UsageEntry) -> job_manager_pb2.UsageRow:
    """A row of an answer about usage."""
    return job_manager_pb2.UsageRow(
        owner=entry.owner,
        project=entry.project,
        job_id=entry.job_id,
        month=entry.month,
        full_charge=entry.charge.full,
        charge=entry.charge.reduced,
        **asdict(entry.amounts),
    )


def omission_message(omission: Omission) -> job_manager_pb2.PlanOmission:
    """What of a plan was left out."""
    return job_manager_pb2.PlanOmission(job_id=omission.job_id, nodes=omission.nodes, reason=omission.reason)


def page_size(asked: int) -> int:
    """Entries of a page, from the size that was asked for; 0 means the largest.

    Raises:
        InvalidInputError: the size is out of range.
    """
    if not 0 <= asked <= MAX_PAGE:
        raise InvalidInputError("page_size", f"0 to {MAX_PAGE}", asked)
    return asked or MAX_PAGE


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
