"""What of a job a caller may see. Pure: messages in, messages out."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

from malletrain.runtime.access.identity import Identity
from malletrain.runtime.access.ownership import owns
from malletrain.v1 import job_manager_pb2, resources_pb2

# Fields that everybody sees, rather than those that are hidden: a new field stays hidden until it is added here.
PUBLIC_JOB_FIELDS = frozenset(
    {
        *("id", "owner", "spec", "state", "reason_code", "admitted", "samples"),
        *("create_time", "update_time", "start_time", "end_time", "not_before"),
        *("wanted_nodes", "commanded_nodes", "confirmed_nodes", "plan_generation"),
        *("restarts", "rescales", "preemptions", "share_weight", "supervisor_version", "passed_over"),
        "fleet_id",
    }
)
PUBLIC_SPEC_FIELDS = frozenset(
    {
        *("name", "min_nodes", "max_nodes", "permitted_nodes", "slots_per_node", "backend", "cold_start"),
        *("scale_up_seconds", "scale_down_seconds", "curve", "profile"),
        *("weight", "target_samples", "max_restarts", "burst_buffer_gb", "fleet"),
    }
)


def _hidden(message: Descriptor, public: frozenset[str]) -> tuple[str, ...]:
    return tuple(field.name for field in message.fields if field.name not in public)


_HIDDEN_JOB_FIELDS = _hidden(resources_pb2.Job.DESCRIPTOR, PUBLIC_JOB_FIELDS)
_HIDDEN_SPEC_FIELDS = _hidden(resources_pb2.JobSpec.DESCRIPTOR, PUBLIC_SPEC_FIELDS)


def visible_to(identity: Identity, job: resources_pb2.Job) -> resources_pb2.Job:
    """A job as a caller may see it: whole for its owner, operators and services, otherwise its public fields.

    Args:
        identity: The caller.
        job: The whole job; not changed.
    """
    if owns(identity, job.owner):
        return job
    shown = resources_pb2.Job()
    shown.CopyFrom(job)
    for name in _HIDDEN_JOB_FIELDS:
        shown.ClearField(name)  # type: ignore[arg-type]
    for name in _HIDDEN_SPEC_FIELDS:
        shown.spec.ClearField(name)  # type: ignore[arg-type]
    return shown


def event_visible_to(identity: Identity, event: job_manager_pb2.JobEvent, owner: str) -> job_manager_pb2.JobEvent:
    """A row of the journal as a caller may see it: others than the owner, operators and services get no prose.

    Args:
        identity: The caller.
        event: The whole row; not changed.
        owner: Owner of its job.
    """
    if owns(identity, owner):
        return event
    shown = job_manager_pb2.JobEvent()
    shown.CopyFrom(event)
    shown.ClearField("reason")
    return shown
