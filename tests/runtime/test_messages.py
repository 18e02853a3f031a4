from __future__ import annotations

import pytest

from malletrain.model.job_state import JobState
from malletrain.runtime.messages import FINAL_JOB_STATES, job_state_of, job_state_value, timestamp, unix_seconds
from malletrain.v1 import resources_pb2


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
