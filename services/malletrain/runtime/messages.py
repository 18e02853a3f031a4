"""Conversions between values and the messages of the contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.model.job_state import JobState
from malletrain.v1 import resources_pb2

if TYPE_CHECKING:
    from malletrain.model.job_terms import JobTerms

MessageT = TypeVar("MessageT", bound=Message)
_PREFIX = "JOB_STATE_"
_PREFIX_PLACES = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def timestamp(unix_seconds: float) -> Timestamp:
    """A time stamp from seconds since the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(unix_seconds * 1e9))
    return stamp


def unix_seconds(stamp: Timestamp) -> float:
    """Seconds since the epoch from a time stamp."""
    return float(stamp.ToNanoseconds() / 1e9)


def message_of(kind: type[MessageT], value: object, /, **others: Any) -> MessageT:
    """A message whose fields have the values of the attributes of the same names.

    Enums become the value of their name, seconds since the epoch time stamps, and values or sequences of values what
    this function makes of them. A new field of a message thus needs an attribute, or a place in `others`, and no more.

    Args:
        kind: The message.
        value: What has the attributes. One that is None is left out.
        others: Fields that have another value, or one of another name.

    Raises:
        AttributeError: there is neither an attribute nor another value for a field.
    """
    for name, convert in _fields(cast(Hashable, kind)):
        if name not in others:
            own = getattr(value, name)
            others[name] = own if convert is None or own is None else convert(own)
    return kind(**others)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    return tuple((field.name, _conversion(field)) for field in kind.DESCRIPTOR.fields)


def _conversion(field: Any) -> Callable[[Any], Any] | None:
    """What makes the value of a field from an attribute; None: it is the attribute."""
    convert: Callable[[Any], Any]
    if field.enum_type is not None:
        convert = partial(_enum_value, field.enum_type)
    elif field.message_type is None or field.message_type.GetOptions().map_entry:
        return None
    elif field.message_type is Timestamp.DESCRIPTOR:
        convert = timestamp
    else:
        convert = partial(message_of, GetMessageClass(field.message_type))
    return (lambda own: [convert(entry) for entry in own]) if field.is_repeated else convert


def _enum_value(kind: EnumDescriptor, member: Enum) -> int:
    """Number in a protobuf enum of a member of ours: by its name, or its value, without the prefix that all have."""
    values, prefix = kind.values_by_name, _PREFIX_PLACES.sub("_", kind.name).upper()
    name = f"{prefix}_{member.name}"
    return int(values[name if name in values else f"{prefix}_{member.value}"].number)


def job_state_value(state: JobState) -> resources_pb2.JobState.ValueType:
    """The protobuf value of a job state."""
    return resources_pb2.JobState.Value(_PREFIX + state.value)


def job_state_of(value: resources_pb2.JobState.ValueType) -> JobState:
    """The job state of a protobuf value.

    Raises:
        ValueError: the value is UNSPECIFIED or unknown.
    """
    return JobState(resources_pb2.JobState.Name(value).removeprefix(_PREFIX))


def terms_of(spec: resources_pb2.JobSpec) -> JobTerms:
    """The terms of a job as JobManager reports it; they are not checked."""
    # Here, for the sake of callers: they read times and states, and start sooner without terms and topology.
    from malletrain.model.job_terms import JobTerms
    from malletrain.runtime.topology_messages import known_preference

    return JobTerms(
        spec.min_nodes,
        spec.max_nodes,
        permitted_nodes=tuple(spec.permitted_nodes),
        weight=spec.weight or 1.0,
        topology=known_preference(spec.topology),
        topology_level=spec.topology_level,
        nodes_per_replica=spec.nodes_per_replica or 1,
    )


FINAL_JOB_STATES = frozenset(job_state_value(state) for state in JobState if state.final)
"""Protobuf values of the states in which a job stays for ever."""
