from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.history.idle_history import IdleRow, IdleRowKind
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.monitor.machine.stalls import MeasuredRescale
from malletrain.simulator.journal.decided import agreement, decided_samples, recorded_changes
from malletrain.simulator.journal.record import Journal, MeasuredJob
from tests.simulator.journal.recorded import (
    CURVE,
    Step,
    completed,
    events,
    measured,
    recorded_job,
    rescaled,
    started,
)

RATES = {0: 0.0} | {point.nodes: point.rate for point in CURVE}
SPANS = st.lists(st.tuples(st.integers(1, 8), st.floats(0.1, 5.0), st.floats(0.0, 100.0)), min_size=1, max_size=8)


@given(spans=SPANS)
def test_samples_are_rates_times_the_time_at_each_scale_without_the_stalls(
    spans: list[tuple[int, float, float]],
) -> None:
    """Each span: scale, seconds until it is confirmed, and seconds of training after that."""
    steps: list[Step] = []
    now, expected, before = 1000.0, 0.0, 0
    for nodes, stall, trained in spans:
        if nodes != before:
            change = rescaled if steps else started
            steps += change(now, nodes, now + stall)
            now += stall
        now += trained
        expected += RATES[nodes] * trained
        before = nodes
    assert decided_samples(recorded_job(steps), now) == pytest.approx(expected, abs=1e-6)
    steps += completed(now, before)
    assert decided_samples(recorded_job(steps), now + 500.0) == pytest.approx(expected, abs=1e-6)


def test_a_measured_gap_counts_rather_than_the_time_until_the_scale_is_confirmed() -> None:
    steps = [*started(0.0, 2, 1.0), *rescaled(100.0, 4, 130.0)]
    gap = MeasuredRescale(2, 4, 5.0, unix_seconds=131.0, number=1)
    change = recorded_changes(events(steps), [gap])[-1]
    assert (change.unix_seconds, change.stall_s, change.before, change.nodes) == (126.0, 5.0, 2, 4)
    with_gap = recorded_job(steps, MeasuredJob(0, 0, 200.0, CURVE, (gap,)))
    # The start lasts as long as a growth usually does.
    expected = RATES[2] * (126.0 - 5.0) + RATES[4] * (200.0 - 131.0)
    assert decided_samples(with_gap, 200.0) == pytest.approx(expected)


def test_a_gap_between_other_scales_or_at_another_time_is_not_taken_for_this_change() -> None:
    steps = [*started(0.0, 2, 1.0), *rescaled(100.0, 4, 130.0)]
    wrong = [MeasuredRescale(2, 3, 5.0, 131.0, 1), MeasuredRescale(2, 4, 5.0, 90.0, 2)]
    change = recorded_changes(events(steps), wrong)[-1]
    assert (change.unix_seconds, change.stall_s) == (100.0, 30.0)


def test_a_change_that_is_never_confirmed_stands_still_until_the_next_one() -> None:
    steps = [
        *started(0.0, 4, 1.0),
        (50.0, JobState.RESCALING, JobReason.PREEMPTED, 3),
        (55.0, JobState.RESCALING, JobReason.PREEMPTED, 2),
        (60.0, JobState.RUNNING, JobReason.CONFIRMED, 2),
    ]
    assert [change.stall_s for change in recorded_changes(events(steps))] == [1.0, inf, 5.0]
    expected = RATES[4] * 49.0 + RATES[2] * 40.0
    assert decided_samples(recorded_job(steps), 100.0) == pytest.approx(expected)


def test_other_nodes_at_the_same_scale_are_a_change_and_notes_are_none() -> None:
    steps = [
        *started(0.0, 2, 1.0),
        (10.0, JobState.RUNNING, JobReason.NODE_RELEASED, 2),
        *rescaled(20.0, 2, 26.0),
    ]
    assert [(change.nodes, change.stall_s) for change in recorded_changes(events(steps))] == [(2, 1.0), (2, 6.0)]


def test_agreement_and_why_there_is_none() -> None:
    steps = started(0.0, 2, 0.0)
    exact = RATES[2] * 100.0
    idle = (IdleRow(0.0, IdleRowKind.START, {"n0": 0.0}),)
    jobs = (
        recorded_job(steps, measured(round(exact), 100.0)),
        recorded_job(steps, measured(round(exact / 2), 100.0), 2),
        recorded_job(steps, measured(round(exact) - 1000, 100.0, lost=1000), 3),
        recorded_job(steps, replace(measured(round(exact * 0.9), 100.0), points=CURVE[:1]), 4),
        recorded_job(steps, None, 5),
    )
    found = {job.job_id: job for job in agreement(Journal(idle, jobs))}
    assert list(found) == ["j000001", "j000002", "j000003", "j000004"]
    assert found["j000001"].difference == pytest.approx(0.0, abs=1e-3)
    assert found["j000002"].difference == pytest.approx(1.0, abs=1e-3)
    assert found["j000003"].difference == pytest.approx(0.0, abs=1e-3)
    assert (found["j000001"].reasons, found["j000003"].reasons) == ((), ())
    assert found["j000002"].reasons[0].startswith("none that is recorded")
    assert found["j000004"].reasons == ("no rate was measured at the scales 2",)


def test_a_start_lasts_until_its_first_batch_began() -> None:
    """Also where workers confirm their scale long before; the first batches of later processes are not its own."""
    steps = [*started(0.0, 2, 1.0), (50.0, JobState.WAITING, JobReason.PREEMPTED, 0), *started(60.0, 4, 62.0)[2:]]
    known = MeasuredJob(0, 0, 200.0, CURVE, first_batches=(31.0, 75.0, 90.0), step_s=1.0)
    job = recorded_job(steps, known)
    expected = RATES[2] * (50.0 - 30.0) + RATES[4] * (200.0 - 74.0)
    assert decided_samples(job, 200.0) == pytest.approx(expected)
    unknown = recorded_job(steps, replace(known, first_batches=()))
    assert decided_samples(unknown, 200.0) == pytest.approx(RATES[2] * 49.0 + RATES[4] * 138.0)
