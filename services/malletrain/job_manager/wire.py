"""Messages of `malletrain.v1` made from JobManager's values, its values made from those of others, and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from malletrain.common.job_limits import DEFAULT_LIMITS
from malletrain.job_manager.machine.burst_buffer import QuotaUse
from malletrain.job_manager.machine.jobs import Job, JobSpec
from malletrain.job_manager.machine.sharing import OwnerShare
from malletrain.job_manager.machine.state import Omission
from malletrain.job_manager.machine.stimuli import IdleSetSeen, NodesChanged, Progressed
from malletrain.job_manager.redaction import redact_environment
from malletrain.job_manager.storage.store import StoredEvent
from malletrain.job_manager.storage.usage_query import UsageKey
from malletrain.job_manager.usage_report import UsageEntry
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import spec_to_proto
from malletrain.runtime.job_value_messages import value_to_proto
from malletrain.runtime.messages import job_state_value, message_of, unix_seconds
from malletrain.runtime.node_needs_messages import needs_to_proto
from malletrain.runtime.topology_messages import preference_to_proto
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2, scavenger_pb2

MAX_PAGE = 1000
_SUBMITTED = resources_pb2.JOB_STATE_UNSPECIFIED
_USAGE_KEYS = {job_manager_pb2.UsageKey.Value(f"USAGE_KEY_{key.name}"): key for key in UsageKey}


def spec_message(spec: JobSpec) -> resources_pb2.JobSpec:
    """A spec with its defaults filled in, without the values of variables that look like secrets."""
    return message_of(
        resources_pb2.JobSpec,
        spec,
        environment=redact_environment(spec.environment),
        fleet=None if spec.fleet is None else spec_to_proto(spec.fleet),
        limits=None if spec.limits == DEFAULT_LIMITS else message_of(resources_pb2.JobLimits, spec.limits),
        needs=needs_to_proto(spec.needs),
        topology=preference_to_proto(spec.topology),
        nodes_per_replica=spec.nodes_per_replica if spec.nodes_per_replica > 1 else 0,
        dependencies=message_of(resources_pb2.Dependencies, spec.dependencies) if spec.dependencies else None,
        value=value_to_proto(spec.value),
    )


def job_message(job: Job, supervisor_version: str = "") -> resources_pb2.Job:
    """A job.

    Args:
        supervisor_version: Version of MalleTrain that its supervisor runs; empty where none is known.
    """
    return message_of(
        resources_pb2.Job,
        job,
        supervisor_version=supervisor_version,
        spec=spec_message(job.usable_spec),
        wanted_nodes=job.wanted,
        commanded_nodes=job.commanded,
        confirmed_nodes=job.confirmed,
        saves_fail=bool(job.save_error),
    )


def event_message(stored: StoredEvent) -> job_manager_pb2.JobEvent:
    """A row of the journal."""
    before = stored.event.from_state
    return message_of(
        job_manager_pb2.JobEvent,
        stored.event,
        sequence=stored.sequence,
        from_state=_SUBMITTED if before is None else job_state_value(before),
    )


def quota_message(use: QuotaUse) -> job_manager_pb2.BurstBufferQuota:
    """The quota of burst buffer."""
    return message_of(job_manager_pb2.BurstBufferQuota, use)


def owner_message(share: OwnerShare) -> job_manager_pb2.OwnerShare:
    """What an owner uses and has used."""
    return message_of(job_manager_pb2.OwnerShare, share)


def usage_keys(values: Sequence[job_manager_pb2.UsageKey.ValueType]) -> list[UsageKey]:
    """The keys by which a request wants usage added up.

    Raises:
        InvalidInputError: a value is none, or comes twice.
    """
    keys: list[UsageKey] = []
    for index, value in enumerate(values):
        if value not in _USAGE_KEYS or _USAGE_KEYS[value] in keys:
            raise InvalidInputError(f"group_by[{index}]", "a key of UsageKey, each once at most", value)
        keys.append(_USAGE_KEYS[value])
    return keys


def usage_message(entry: UsageEntry) -> job_manager_pb2.UsageRow:
    """A row of an answer about usage."""
    charges = {"full_charge": entry.charge.full, "charge": entry.charge.reduced}
    return message_of(job_manager_pb2.UsageRow, entry, **charges, **asdict(entry.amounts))


def omission_message(omission: Omission) -> job_manager_pb2.PlanOmission:
    """What of a plan was left out."""
    return message_of(job_manager_pb2.PlanOmission, omission)


def progress_of(entry: monitor_pb2.Progress) -> Progressed:
    """The progress of a job as Monitor tells it."""
    save_error = None
    if entry.HasField("saves"):
        save_error = (entry.saves.reason or "the reason is not known") if entry.saves.failures else ""
    in_phase = entry.HasField("phase")
    return Progressed(
        entry.job_id,
        entry.samples,
        entry.stalled or entry.pausing,
        phase=entry.phase.name,
        seconds=entry.phase.seconds if in_phase else entry.silent_seconds if entry.records else 0.0,
        positions_known=entry.positions_known,
        save_error=save_error,
    )


def nodes_stimulus(message: scavenger_pb2.WatchNodesResponse, now: float) -> IdleSetSeen | NodesChanged:
    """What the Scavenger tells of nodes: a whole set, or a change of it.

    Args:
        message: What it tells.
        now: Seconds since the epoch; the time of a change that has none.
    """
    joined = frozenset(node.name for node in message.joined)
    gpus = {node.name: node.gpus for node in message.joined if node.gpus > 0}
    if message.snapshot:
        return IdleSetSeen(joined, gpus)
    event_time = unix_seconds(message.event_time) if message.HasField("event_time") else now
    return NodesChanged(joined, frozenset(message.left), event_time, gpus)


def page_size(size: int) -> int:
    """Entries of a page, from the size that was asked for; 0 means the largest.

    Raises:
        InvalidInputError: the size is out of range.
    """
    if not 0 <= size <= MAX_PAGE:
        raise InvalidInputError("page_size", f"0 to {MAX_PAGE}", size)
    return size or MAX_PAGE


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
