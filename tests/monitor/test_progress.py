from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.monitor.machine.progress import (
    NO_POSITION,
    REPORTERS_KEPT,
    ProgressRecord,
    RecordColumns,
    ReportedBatch,
    ReporterSequences,
    is_stalled,
    nodes_needed,
)
from malletrain.monitor.machine.trackers import JobTracker
from malletrain.monitor.settings import MonitorSettings
from tests.monitor.trainer import FakeTrainer

SETTINGS = MonitorSettings().options()


def new_tracker() -> JobTracker:
    return JobTracker("j1", SETTINGS, now=0.0)


@given(st.lists(st.one_of(st.integers(1, 8), st.integers(-40, -1)), max_size=60))
def test_samples_net_and_lost_add_up_to_all_that_was_processed(script: list[int]) -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    for action in script:
        if action > 0:
            trainer.nodes = action
            trainer.step(0.1)
        else:
            trainer.position = max(0, trainer.position + action * 16)
    tracker.add(trainer.take(), now=1.0)
    progress = tracker.progress
    assert progress.samples + progress.samples_lost == trainer.processed
    assert progress.records == trainer.sequence


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12), st.booleans())
def test_records_that_are_sent_again_never_count_twice(
    count: int, windows: list[tuple[int, int]], positioned: bool
) -> None:
    trainer = FakeTrainer()
    trainer.positioned = positioned
    trainer.steps(count, 0.1)
    whole = trainer.take()
    tracker, sent = new_tracker(), 0
    for begin, end in [*windows, (0, count)]:
        # A reporter sends nothing that leaves a gap, but anything it has sent before.
        first, last = min(begin, sent), min(max(begin, end), count)
        part = ReportedBatch("j1", "r1", first + 1, whole.records.part(first, last), 1)
        tracker.add(part, now=1.0)
        sent = max(sent, last)
    assert tracker.progress.samples == 32 * count
    assert tracker.progress.samples_lost == 0
    assert tracker.progress.records == count
    assert tracker.sequence("r1") == count


def test_rollback_is_lost_once_and_progress_is_the_newest_position() -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    trainer.steps(10, 0.1)
    trainer.position -= 3 * 32
    trainer.steps(2, 0.1)
    tracker.add(trainer.take(), now=1.0)
    assert tracker.progress.samples == 9 * 32
    assert tracker.progress.samples_lost == 3 * 32


def test_rollback_behind_a_larger_global_batch_is_seen() -> None:
    trainer, tracker = FakeTrainer(nodes=1), new_tracker()
    trainer.steps(10, 0.1)
    trainer.position -= 32
    trainer.nodes = 4
    trainer.step(0.1)
    tracker.add(trainer.take(), now=1.0)
    assert tracker.progress.samples == 9 * 32 + 4 * 32
    assert tracker.progress.samples_lost == 32


def test_first_position_of_a_job_is_taken_as_it_is() -> None:
    tracker = new_tracker()
    tracker.add(ReportedBatch("j1", "r1", 1, RecordColumns.of([ProgressRecord(5.0, 32, 6400, 1)]), 1), now=1.0)
    assert tracker.progress.samples == 6400
    assert tracker.progress.samples_lost == 0


def test_positions_bridge_dropped_records_and_drops_are_counted_once() -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    trainer.steps(5, 0.1)
    tracker.add(trainer.take(), now=1.0)
    trainer.drop(7, 0.1)
    trainer.steps(1, 0.1)
    batch = trainer.take(dropped=7)
    tracker.add(batch, now=2.0)
    tracker.add(batch, now=3.0)
    assert tracker.progress.samples == 13 * 32
    assert tracker.progress.samples_lost == 0
    assert tracker.progress.records == 6
    assert tracker.dropped_records == 7


@pytest.mark.parametrize("positioned", [True, False])
def test_late_records_of_a_reporter_that_was_succeeded(positioned: bool) -> None:
    trainer, tracker = FakeTrainer(nodes=2), new_tracker()
    trainer.positioned = positioned
    trainer.steps(4, 0.1)
    tracker.add(trainer.take(), now=1.0)
    trainer.steps(2, 0.1)
    late = trainer.take()
    trainer.new_reporter("r2")
    trainer.nodes = 1
    trainer.steps(3, 0.1)
    tracker.add(trainer.take(), now=2.0)
    tracker.add(late, now=3.0)
    assert tracker.progress.samples == 6 * 64 + 3 * 32
    assert tracker.progress.nodes == 1
    assert tracker.progress.records == 9
    assert tracker.progress.last_record_unix_seconds == pytest.approx(trainer.now)


def test_sign_of_life_of_a_new_process_does_not_retire_the_reporter() -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    trainer.steps(4, 0.1)
    tracker.add(trainer.take(), now=1.0)
    tracker.add(ReportedBatch("j1", "r2", 0, RecordColumns(), 1), now=1.0)
    trainer.steps(4, 0.1)
    tracker.add(trainer.take(), now=2.0)
    assert tracker.progress.nodes == 1
    assert tracker.progress.last_record_unix_seconds == pytest.approx(trainer.now)


def test_clock_set_back_does_not_stop_progress() -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    trainer.steps(10, 0.1)
    trainer.now -= 3600
    trainer.steps(10, 0.1)
    tracker.add(trainer.take(), now=1.0)
    assert tracker.progress.samples == 20 * 32


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_nodes_hold_all_workers_and_none_is_spare(workers: int, slots: int) -> None:
    nodes = nodes_needed(workers, slots)
    assert (nodes - 1) * slots < workers <= nodes * slots


def test_scale_is_in_nodes() -> None:
    tracker = new_tracker()
    tracker.add(ReportedBatch("j1", "r1", 1, RecordColumns.of([ProgressRecord(5.0, 32, NO_POSITION, 9)]), 4), now=1.0)
    assert tracker.progress.nodes == 3


def test_ledger_is_bounded_and_keeps_the_newest() -> None:
    sequences = ReporterSequences()
    for number in range(2 * REPORTERS_KEPT):
        sequences.take_batch(ReportedBatch("j1", f"r{number}", 1, RecordColumns.of([ProgressRecord(1.0, 1, 1, 1)]), 1))
    assert len(sequences.states()) == REPORTERS_KEPT
    assert sequences.is_newest(f"r{2 * REPORTERS_KEPT - 1}")
    assert sequences.sequence("r0") == 0


def test_when_a_reporter_first_reported_is_known_if_its_first_record_is() -> None:
    sequences = ReporterSequences()
    records = RecordColumns.of([ProgressRecord(time, 1, NO_POSITION, 1) for time in (50.0, 51.0)])
    for first in (1, 3):
        sequences.take_batch(ReportedBatch("j", "seen", first, records, 1))
    sequences.take_batch(ReportedBatch("j", "missed", 2, records, 1))
    assert {name: state.first_unix_seconds for name, state in sequences.states().items()} == {"seen": 50.0, "missed": 0}


def test_stalled_after_many_usual_steps_but_not_before_the_floor() -> None:
    settings = MonitorSettings(stall_factor=10, stall_floor_seconds=30, stall_unknown_seconds=300).options()
    assert not is_stalled(29, 0.1, settings)
    assert is_stalled(31, 0.1, settings)
    assert not is_stalled(99, 10.0, settings)
    assert is_stalled(101, 10.0, settings)
    assert not is_stalled(299, 0.0, settings)
    assert is_stalled(301, 0.0, settings)


def test_silence_counts_from_when_records_came_in_not_from_the_trainers_clock() -> None:
    trainer, tracker = FakeTrainer(start=5.0), new_tracker()
    assert not tracker.is_stalled(1e9)
    trainer.steps(10, 0.1)
    tracker.add(trainer.take(), now=100.0)
    assert not tracker.is_stalled(100.0 + SETTINGS.stall_floor_seconds)
    assert tracker.is_stalled(101.0 + SETTINGS.stall_floor_seconds)
    trainer.step(70)
    tracker.add(trainer.take(), now=170.0)
    assert not tracker.is_stalled(171.0)


def test_duplicates_are_no_sign_of_life() -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    trainer.steps(10, 0.1)
    batch = trainer.take()
    tracker.add(batch, now=100.0)
    tracker.add(batch, now=160.0)
    assert tracker.is_stalled(101.0 + SETTINGS.stall_floor_seconds)


def test_time_before_a_restart_of_monitor_is_no_silence() -> None:
    trainer, tracker = FakeTrainer(), new_tracker()
    trainer.steps(10, 0.1)
    tracker.add(trainer.take(), now=100.0)
    restored = JobTracker("j1", SETTINGS, now=5000.0, earlier=tracker.stored())
    assert not restored.is_stalled(5001.0)
    assert restored.is_stalled(5001.0 + SETTINGS.stall_floor_seconds)
