"""The past as it was, and as other settings would have made it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.journal.conversion import what_if
from malletrain.simulator.journal.decided import decided_progress, decided_samples, recorded_progress
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.options import ReplayOptions
from tests.simulator.journal.recorded import measured, recorded_job, rescaled, started

BEGIN, END = 1000.0, 4600.0
NODES = {f"n{number}": BEGIN for number in range(6)}


def journal(jobs: int = 2) -> Journal:
    """An hour of six nodes, of which one leaves and joins; jobs that were rescaled once."""
    idle = (
        IdleRow(BEGIN, IdleRowKind.START, NODES),
        IdleRow(2000.0, IdleRowKind.CHANGE, {}, ("n5",)),
        IdleRow(3000.0, IdleRowKind.CHANGE, {"n5": 3000.0}),
    )
    steps = [*started(BEGIN + 10, 1, BEGIN + 20), *rescaled(BEGIN + 500, 2, BEGIN + 505)]
    found = [recorded_job(steps, measured(360_000, END), number=number) for number in range(1, jobs + 1)]
    return Journal(idle, tuple(found))


@given(times=st.lists(st.floats(BEGIN - 100, END + 100), min_size=1, max_size=8).map(sorted))
def test_progress_is_what_was_processed_until_each_time(times: list[float]) -> None:
    recorded = journal().jobs[0]
    assert decided_progress(recorded, times) == pytest.approx([decided_samples(recorded, time) for time in times])
    assert recorded_progress(recorded, (BEGIN, END, END + 1)) == pytest.approx([0.0, 360_000, 360_000])


def test_a_what_if_stands_beside_what_happened_and_beside_its_bound() -> None:
    told: list[float] = []
    found = what_if(journal(), BEGIN, END, ReplayOptions(duration_s=END - BEGIN), told.append)
    assert found.times_unix[0] == BEGIN
    assert found.times_unix[-1] == END
    assert found.node_hours == pytest.approx((6 * 3600 - 1000) / 3600)
    assert found.really.samples == pytest.approx(720_000)
    assert (found.really.rescales, found.really.preemptions) == (4, 0)
    assert found.replay.efficiency is not None
    assert found.free.efficiency is not None
    assert found.really.samples < found.replay.samples <= found.free.samples
    assert 0 < found.replay.efficiency <= found.free.efficiency <= 1.0 + 1e-9
    for outcome in (found.really, found.replay, found.free):
        assert outcome.course[0] == pytest.approx(0.0)
        assert outcome.course[-1] == pytest.approx(outcome.samples)
        assert list(outcome.course) == sorted(outcome.course)
    assert {job.job_id: job.really for job in found.jobs} == pytest.approx({"j000001": 360_000, "j000002": 360_000})
    assert sum(job.replayed for job in found.jobs) == pytest.approx(found.replay.samples)
    assert told == sorted(told)


def test_a_part_of_the_past_has_its_own_samples() -> None:
    first, second = (
        what_if(journal(), *span, ReplayOptions(duration_s=span[1] - span[0]))
        for span in ((BEGIN, 2500.0), (2500.0, END))
    )
    assert first.really.samples + second.really.samples == pytest.approx(720_000)


def test_a_time_without_jobs_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a time in which jobs trained"):
        what_if(journal(0), BEGIN, END, ReplayOptions(duration_s=END - BEGIN))
