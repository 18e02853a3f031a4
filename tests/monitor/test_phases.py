"""Phases that a script declares count neither as stall nor as part of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.monitor.machine.progress import PhaseSeen, ProgressRecord, RecordColumns, ReportedBatch
from malletrain.monitor.machine.trackers import JobTracker, JobTrackers
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.wire import parse_report, progress_message
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import monitor_pb2

SETTINGS = MonitorSettings(warmup_seconds=0.0).options()
EVALUATE = PhaseSeen("evaluate", 1.0)


def batch(count: int, *, first: int = 1, every: int = 0, step: float = 0.1, paused: float = 30.0) -> ReportedBatch:
    """Records of equal steps; before each `every`-th one the job evaluates."""
    now, rows = 1000.0, []
    for number in range(count):
        inside = paused if every and number % every == every - 1 else 0.0
        now += step + inside
        rows.append(ProgressRecord(now, 32, -1, 1, inside))
    return ReportedBatch("j1", "r1", first, RecordColumns.of(rows), 1)


def signs(phase: PhaseSeen | None, reporter: str = "r1") -> ReportedBatch:
    return ReportedBatch("j1", reporter, 0, RecordColumns(), 1, phase=phase)


@pytest.mark.parametrize("at_once", [1, 200])
def test_the_rate_is_that_of_the_steps_alone(at_once: int) -> None:
    tracker, whole = JobTracker("j1", SETTINGS, 0.0), batch(200, every=5)
    for begin in range(0, 200, at_once):
        part = whole.records.part(begin, begin + at_once)
        tracker.add(replace(whole, first_sequence=begin + 1, records=part), 0.0)
    assert tracker.rate == pytest.approx(320.0)
    assert tracker.stored().usual_step_seconds == pytest.approx(0.1)


def test_a_rescale_during_which_the_job_evaluates_costs_what_is_left() -> None:
    tracker, before = JobTracker("j1", SETTINGS, 0.0), batch(50)
    end = before.records.unix_seconds[-1]
    tracker.add(before, 0.0)
    after = [ProgressRecord(end + 62.0 + 0.1 * number, 64, -1, 2, 0.0 if number else 60.0) for number in range(20)]
    tracker.add(ReportedBatch("j1", "r1", 51, RecordColumns.of(after), 1), 0.0)
    (rescale,) = tracker.stalls.rescales()
    assert rescale.seconds == pytest.approx(1.9)


def test_a_job_in_a_phase_is_not_stalled_and_its_silence_begins_with_the_end_of_it() -> None:
    trackers = JobTrackers(SETTINGS, (), 0.0)
    trackers.add(batch(50), 0.0)
    trackers.take_changed(1.0)
    for second in range(1, 100):
        trackers.add(signs(PhaseSeen("evaluate", float(second))), float(second))
    tracker = trackers.find("j1")
    assert tracker is not None
    assert not tracker.is_stalled(99.0)
    assert tracker.is_pausing(99.0)
    message = progress_message(tracker, 99.0)
    assert (message.phase.name, message.phase.seconds, message.stalled, message.pausing) == (
        "evaluate",
        99,
        False,
        True,
    )
    trackers.add(signs(None), 100.0)
    assert not tracker.is_stalled(160.0)
    assert tracker.is_stalled(160.1)
    assert progress_message(tracker, 160.0).silent_seconds == 60.0
    assert not progress_message(tracker, 160.0).HasField("phase")


def test_watchers_hear_of_phases() -> None:
    trackers = JobTrackers(SETTINGS, (), 0.0)
    trackers.add(signs(EVALUATE), 1.0)
    assert [tracker.job_id for tracker in trackers.take_changed(1.0)] == ["j1"], "also before the first record"
    assert trackers.take_changed(2.0) == []
    assert [tracker.job_id for tracker in trackers.take_changed(17.0)] == ["j1"], "its reporter is silent"
    trackers.forget(["j1"])
    assert trackers.take_changed(18.0) == []


def test_a_phase_holds_as_long_as_the_newest_reporter_is_heard() -> None:
    tracker = JobTracker("j1", SETTINGS, 0.0)
    tracker.add(batch(5), 0.0)
    tracker.add(replace(batch(5), reporter_id="r2"), 1.0)
    tracker.add(signs(EVALUATE, "r1"), 2.0)
    assert tracker.phase(2.0) is None, "an old reporter's"
    tracker.add(signs(EVALUATE, "r2"), 2.0)
    assert tracker.phase(3.0) == PhaseSeen("evaluate", 2.0)
    tracker.add(signs(PhaseSeen("start", 0.5), "r3"), 4.0)
    assert tracker.phase(4.0) == PhaseSeen("start", 0.5), "the next one's, before its first record"
    assert tracker.phase(20.0) is None


@pytest.mark.parametrize(
    ("phase", "columns", "message"),
    [
        ({"name": ""}, {}, "phase.name: expected 1 to 31 printable characters"),
        ({"name": "x" * 32}, {}, "phase.name: expected 1 to 31 printable characters"),
        ({"name": "a\nb"}, {}, "phase.name: expected 1 to 31 printable characters"),
        ({"name": "save", "seconds": -1.0}, {}, "phase.seconds: expected a finite number, at least 0"),
        ({"name": "save", "seconds": float("inf")}, {}, "phase.seconds: expected a finite number"),
        ({}, {"phase_seconds": [0.0, 0.0]}, "batch.phase_seconds: expected none or 1 entries, got 2"),
        ({}, {"phase_seconds": [-1.0]}, r"batch.phase_seconds\[0\]: expected seconds, from 0 to 1099511627776"),
        ({}, {"phase_seconds": [float("nan")]}, r"batch.phase_seconds\[0\]: expected seconds, from 0"),
    ],
)
def test_bad_phases_are_refused(phase: dict[str, object], columns: dict[str, list[float]], message: str) -> None:
    request = monitor_pb2.ReportRequest(job_id="j1", reporter_id="r1", slots_per_node=1)
    request.batch.MergeFrom(
        monitor_pb2.ProgressBatch(
            first_sequence=1, unix_seconds=[1.0], samples=[1], positions=[-1], workers=[1], **columns
        )
    )
    if phase:
        request.phase.MergeFrom(monitor_pb2.PhaseReport(**phase))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=message):
        parse_report(request)
