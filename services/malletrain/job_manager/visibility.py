"""What of a job a caller may see: messages in, messages out, without I/O."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

from malletrain.runtime.access.identity import Identity, PermissionDeniedError, Role, owns
from malletrain.runtime.errors import quote
from malletrain.v1 import job_manager_pb2, resources_pb2

# Fields that everybody sees, rather than those that are hidden: a new field stays hidden until it is added here.
PUBLIC_JOB_FIELDS = frozenset(
    {
        *("id", "owner", "spec", "state", "reason_code", "admitted", "samples"),
        *("create_time", "update_time", "start_time", "end_time", "not_before"),
        *("wanted_nodes", "commanded_nodes", "confirmed_nodes", "plan_generation"),
        *("restarts", "rescales", "preemptions", "share_weight", "supervisor_version", "passed_over"),
        *("fleet_id", "scale_command", "samples_known", "saves_fail", "left_out_scales", "array_id"),
    }
)
PUBLIC_SPEC_FIELDS = frozenset(
    {
        *("name", "min_nodes", "max_nodes", "permitted_nodes", "slots_per_node", "backend", "cold_start"),
        *("scale_up_seconds", "scale_down_seconds", "curve", "profile"),
        *("weight", "target_samples", "max_restarts", "burst_buffer_gb", "fleet", "limits", "needs", "topology"),
        *("topology_level", "array", "nodes_per_replica", "value"),
        "dependencies",
    }
)


_TEXTS_FOR_PEOPLE = ("reason", "metrics", "last_failure", "save_error")
_MAX_PATH_LENGTH = 4096


def _hidden_fields(message: Descriptor, public: frozenset[str]) -> tuple[str, ...]:
    return tuple(field.name for field in message.fields if field.name not in public)


_HIDDEN_JOB_FIELDS = _hidden_fields(resources_pb2.Job.DESCRIPTOR, PUBLIC_JOB_FIELDS)
_HIDDEN_SPEC_FIELDS = _hidden_fields(resources_pb2.JobSpec.DESCRIPTOR, PUBLIC_SPEC_FIELDS)


def visible_to(identity: Identity, job: resources_pb2.Job) -> resources_pb2.Job:
    """A job as a caller may see it: whole for its owner, operators and services, otherwise its public fields.

    Args:
        identity: The caller.
        job: The whole job; not changed.
    """
    if owns(identity, job.owner):
        return job
    visible = resources_pb2.Job()
    visible.CopyFrom(job)
    for name in _HIDDEN_JOB_FIELDS:
        visible.ClearField(name)  # type: ignore[arg-type]
    for name in _HIDDEN_SPEC_FIELDS:
        visible.spec.ClearField(name)  # type: ignore[arg-type]
    return visible


def for_service(job: resources_pb2.Job) -> resources_pb2.Job:
    """A job as services are told of it, which run nothing: the program alone of its command, and no texts for people.

    The Allocator tells by the program, the folder and PATH which jobs boot alike.

    Args:
        job: The whole job; changed and returned.
    """
    path = job.spec.environment.get("PATH", "")
    for name in _TEXTS_FOR_PEOPLE:
        job.ClearField(name)  # type: ignore[arg-type]
    job.spec.ClearField("environment")
    job.spec.ClearField("launch_note")
    job.spec.ClearField("project")
    del job.spec.command[1:]
    if path and len(path) <= _MAX_PATH_LENGTH:
        job.spec.environment["PATH"] = path
    return job


def usage_owner(identity: Identity, owner: str) -> str:
    """Whose usage a caller is told of; empty: that of all.

    Args:
        identity: The caller.
        owner: Whose the caller asks for; empty: of all that it may see.

    Raises:
        PermissionDeniedError: a user asks for that of another one.
    """
    if identity.role is not Role.USER:
        return owner
    if owner not in ("", identity.user):
        raise PermissionDeniedError(
            f"{identity.user} has the role user, and sees its own usage: that of {quote(owner)} is for viewers and "
            "operators"
        )
    return identity.user


def event_visible_to(identity: Identity, event: job_manager_pb2.JobEvent, owner: str) -> job_manager_pb2.JobEvent:
    """A row of the journal as a caller may see it: others than the owner, operators and services get no prose.

    Args:
        identity: The caller.
        event: The whole row; not changed.
        owner: Owner of its job.
    """
    if owns(identity, owner):
        return event
    visible = job_manager_pb2.JobEvent()
    visible.CopyFrom(event)
    visible.ClearField("reason")
    return visible
