"""Messages that are made of values whose attributes have the names of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

import pytest

from malletrain.model.job_state import JobState
from malletrain.model.scaling import RescaleStall
from malletrain.runtime.messages import (
    FINAL_JOB_STATES,
    job_state_of,
    job_state_value,
    message_of,
    timestamp,
    unix_seconds,
)
from malletrain.v1 import profiler_pb2, resources_pb2, scavenger_pb2


class Source(Enum):
    MEASURED = 3


@dataclass(frozen=True)
class Point:
    nodes: int = 2
    rate: float = 1.5
    source: Enum = Source.MEASURED
    relative_error: float = 0.25
    steps: int = 7
    unix_seconds: float = 3.0


def test_numbers_and_enums_go_into_the_fields_of_their_names() -> None:
    assert message_of(profiler_pb2.ProfilePoint, Point()) == profiler_pb2.ProfilePoint(
        nodes=2, rate=1.5, source=profiler_pb2.CURVE_SOURCE_MEASURED, relative_error=0.25, steps=7, unix_seconds=3.0
    )


def test_another_value_counts_more_than_the_attribute() -> None:
    assert message_of(profiler_pb2.ProfilePoint, Point(), nodes=5).nodes == 5


def test_parts_times_and_enums_that_are_named_by_their_values() -> None:
    @dataclass(frozen=True)
    class Drain:
        name: str = "n1"
        reason: str = ""
        user: str = "ada"
        since: float = 12.5

    assert message_of(scavenger_pb2.DrainedNode, Drain()).since == timestamp(12.5)

    @dataclass(frozen=True)
    class Measured:
        stalls: tuple[RescaleStall, ...] = (RescaleStall(1, 2, 3.0),)

    others = {field.name: None for field in profiler_pb2.Profile.DESCRIPTOR.fields if field.name != "stalls"}
    assert list(message_of(profiler_pb2.Profile, Measured(), **others).stalls) == [
        resources_pb2.RescaleStall(from_nodes=1, to_nodes=2, seconds=3.0)
    ]


def test_what_is_none_is_left_out() -> None:
    @dataclass(frozen=True)
    class Status:
        source: str = "slurm"
        query: str = "sinfo"
        age_seconds: float | None = None
        asked: int = 1
        failed: int = 0
        failures_in_a_row: int = 0
        seconds: float = 0.0
        error: str = ""

    assert not message_of(scavenger_pb2.QueryStatus, Status()).HasField("age_seconds")


def test_a_field_without_a_value_is_an_error() -> None:
    with pytest.raises(AttributeError, match="rate"):
        message_of(resources_pb2.ScalingPoint, RescaleStall(1, 2, 3.0), nodes=1)


def test_an_enum_is_found_by_its_value_where_the_contract_has_no_such_name() -> None:
    class Choice(StrEnum):
        DEFAULT = "UNSPECIFIED"
        OTHER = "OTHER"

    @dataclass(frozen=True)
    class Chosen(Point):
        source: Choice = Choice.DEFAULT

    assert message_of(profiler_pb2.ProfilePoint, Chosen()).source == profiler_pb2.CURVE_SOURCE_UNSPECIFIED
    with pytest.raises(KeyError, match="CURVE_SOURCE_OTHER"):
        message_of(profiler_pb2.ProfilePoint, Chosen(source=Choice.OTHER))


def test_times_come_back_to_the_microsecond() -> None:
    for seconds in (0.0, 1.25, 1_764_000_000.123_456):
        assert unix_seconds(timestamp(seconds)) == pytest.approx(seconds, abs=1e-6, rel=0)


def test_every_job_state_has_a_value() -> None:
    values = set(resources_pb2.JobState.values()) - {resources_pb2.JOB_STATE_UNSPECIFIED}
    assert {job_state_value(state) for state in JobState} == values
    assert all(job_state_of(job_state_value(state)) is state for state in JobState)
    assert {job_state_of(value) for value in FINAL_JOB_STATES} == {state for state in JobState if state.final}


@pytest.mark.parametrize("value", [0, 99])
def test_values_that_are_no_state_are_refused(value: int) -> None:
    with pytest.raises(ValueError):
        job_state_of(value)
