"""The fast engine and the independent one agree to the last digit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.simulator.replay.builders import Case, cases
from tests.simulator.replay.naive import Naive

pytestmark = pytest.mark.long

JOB_FIGURES = (
    "admitted_s",
    "started_s",
    "ended_s",
    "node_seconds",
    "preemptions",
    "rescales",
    "preemption_samples",
    "rescale_samples",
)


@settings(deadline=None, max_examples=400)
@given(case=cases())
def test_every_decision_and_every_job_is_the_same(case: Case) -> None:
    result, naive = case.run_replay(), Naive(case)
    assert len(result.decisions["time_s"]) == len(naive.rows)
    for column in naive.rows[0] if naive.rows else ():
        assert result.decisions[column].tolist() == [row[column] for row in naive.rows], column
    expected = {job.job.id: job for job in naive.jobs}
    assert [record.job for record in result.jobs] == list(expected)
    for record in result.jobs:
        twin = expected[record.job]
        assert record.samples == twin.done, record
        for figure in JOB_FIGURES:
            assert getattr(record, figure) == getattr(twin, figure), (figure, record)
