"""Conversions between values and the messages that several services use."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.model.job_state import JobState
from malletrain.v1 import resources_pb2

_PREFIX = "JOB_STATE_"


def timestamp(unix_seconds: float) -> Timestamp:
    """A time stamp from seconds since the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(unix_seconds * 1e9))
    return stamp


def unix_seconds(stamp: Timestamp) -> float:
    """Seconds since the epoch from a time stamp."""
    return float(stamp.ToNanoseconds() / 1e9)


def job_state_value(state: JobState) -> resources_pb2.JobState.ValueType:
    """The protobuf value of a job state."""
    return resources_pb2.JobState.Value(_PREFIX + state.value)


def job_state_of(value: resources_pb2.JobState.ValueType) -> JobState:
    """The job state of a protobuf value.

    Raises:
        ValueError: the value is UNSPECIFIED or unknown.
    """
    return JobState(resources_pb2.JobState.Name(value).removeprefix(_PREFIX))


FINAL_JOB_STATES = frozenset(job_state_value(state) for state in JobState if state.final)
"""Protobuf values of the states in which a job stays for ever."""
