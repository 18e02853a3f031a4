from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.monitor.machine.progress import (
    MIN_RECORDS,
    NO_POSITION,
    ProgressRecord,
    RecordColumns,
    ReportedBatch,
    steady_spans,
)
from malletrain.monitor.machine.trackers import JobTracker
from malletrain.monitor.settings import MonitorSettings
from tests.monitor.trainer import FakeTrainer

SETTINGS = MonitorSettings(window_steps=64).options()
ACTIONS = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 90)),
    st.tuples(st.just("scale"), st.integers(1, 6)),
    st.tuples(st.just("roll back"), st.integers(0, 80)),
    st.tuples(st.just("batch"), st.integers(0, 2)),
    st.tuples(st.just("clock"), st.integers(-3, 3)),
    st.tuples(st.just("tell"), st.integers(0, 1)),
)


def play(script: list[tuple[str, int]], seconds: float) -> ReportedBatch:
    """What a trainer reports that rescales, rolls back, has batches without samples, and whose clock is set."""
    trainer = FakeTrainer()
    for action, value in script:
        match action:
            case "steps":
                trainer.steps(value, lambda: seconds * (1 + trainer.sequence % 3))
            case "scale":
                trainer.nodes = value
            case "roll back":
                trainer.position = max(0, trainer.position - value)
            case "batch":
                trainer.per_node = 16 * value
            case "clock":
                trainer.now += value
            case _:
                trainer.positioned = bool(value)
    return trainer.take()


def one_by_one(batch: ReportedBatch) -> JobTracker:
    tracker = JobTracker("j1", SETTINGS, now=0.0)
    for index in range(len(batch.records)):
        part = batch.records.part(index, index + 1)
        tracker.add(ReportedBatch("j1", "r1", index + 1, part, batch.slots_per_node), now=1.0)
    return tracker


@settings(max_examples=300)
@given(
    st.lists(ACTIONS, max_size=14),
    st.sampled_from((0.0, 0.01, 0.3)),
    st.lists(st.integers(1, 400), max_size=3),
)
def test_whole_batches_count_as_their_records_do(
    script: list[tuple[str, int]], seconds: float, cuts: list[int]
) -> None:
    whole = play(script, seconds)
    tracker, begin = JobTracker("j1", SETTINGS, now=0.0), 0
    for end in [*sorted(cut for cut in cuts if cut < len(whole.records)), len(whole.records)]:
        part = whole.records.part(begin, end)
        tracker.add(ReportedBatch("j1", "r1", begin + 1, part, whole.slots_per_node), now=1.0)
        begin = end
    expected = one_by_one(whole)
    assert tracker.stored() == expected.stored()
    assert tracker.throughput.points() == expected.throughput.points()
    tail = FakeTrainer(nodes=2, start=5000.0)
    tail.sequence, tail.position, tail.first = len(whole.records), 10**6, len(whole.records) + 1
    tail.steps(80, 0.1)
    after = tail.take()
    for judged in (tracker, expected):
        judged.add(after, now=2.0)
    assert tracker.stored() == expected.stored()


def test_a_long_run_is_one_span_and_what_interrupts_it_is_in_none() -> None:
    records = [ProgressRecord(float(count), 32, 32 * count, 2) for count in range(1, 101)]
    assert steady_spans(RecordColumns.of(records)) == [(1, 100)]
    grown = [*records[:50], *(ProgressRecord(entry.unix_seconds, 32, entry.position, 3) for entry in records[50:])]
    assert steady_spans(RecordColumns.of(grown)) == [(1, 50), (51, 100)]
    silent = [*records[:50], ProgressRecord(50.5, 0, records[49].position, 2), *records[50:]]
    assert steady_spans(RecordColumns.of(silent)) == [(1, 50), (52, 101)]
    back = [*records[:60], ProgressRecord(61.0, 32, 32 * 40, 2)]
    assert steady_spans(RecordColumns.of(back)) == [(1, 60)]
    untold = [*records[:50], *(ProgressRecord(entry.unix_seconds, 32, NO_POSITION, 2) for entry in records[50:])]
    assert steady_spans(RecordColumns.of(untold)) == [(1, 50), (51, 100)]
    assert steady_spans(RecordColumns.of(records[:MIN_RECORDS])) == []
