"""Throughput by how near each other a job's nodes are."""

from __future__ import annotations

import random

import pytest

from malletrain.monitor.machine.machine import MonitorMachine
from malletrain.monitor.machine.stimuli import BatchesReported, JobsPlaced
from malletrain.monitor.machine.throughput import MAX_SPAN_POINTS, JobSpan
from malletrain.monitor.machine.trackers import JobTracker, JobTrackers
from malletrain.monitor.placing import JobSpans
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.store import MonitorStore
from malletrain.monitor.stragglers.slow_nodes import JobPlace
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.kernel.recording import Moment
from tests.monitor.trainer import FakeTrainer
from tests.support.postgresql import Locate

OPTIONS = MonitorSettings(warmup_seconds=0).options()


def train(tracker: JobTracker, trainer: FakeTrainer, nodes: int, seconds: float, count: int = 40) -> None:
    trainer.nodes = nodes
    trainer.steps(count, seconds)
    tracker.add(trainer.take(), now=1.0)


def rates(tracker: JobTracker) -> dict[tuple[int, int], float]:
    return {(one.point.nodes, one.shared_levels): one.point.rate for one in tracker.throughput.span_points()}


def test_equal_numbers_of_nodes_are_kept_apart_by_nearness() -> None:
    tracker, trainer = JobTracker("j1", OPTIONS), FakeTrainer()
    for _ in range(3):
        for span, seconds in ((JobSpan(2, 2), 0.1), (JobSpan(3, 1), 0.1), (JobSpan(2, 0), 0.125)):
            tracker.throughput.place(span)
            train(tracker, trainer, span.nodes, seconds)
    assert tracker.throughput.points()
    assert rates(tracker) == pytest.approx({(2, 0): 512, (2, 2): 640, (3, 1): 960})
    assert {point.nodes for point in tracker.throughput.points()} == {2, 3}


def test_records_that_come_before_it_is_known_where_the_job_is_count_for_no_nearness() -> None:
    tracker, trainer = JobTracker("j1", OPTIONS), FakeTrainer()
    tracker.throughput.place(JobSpan(4, 0))
    train(tracker, trainer, 2, 0.1)
    tracker.throughput.points()
    assert rates(tracker) == {}, "on two nodes it was nowhere that is known"
    tracker.throughput.place(JobSpan(2, 1))
    tracker.throughput.points()
    assert rates(tracker) == {}
    train(tracker, trainer, 2, 0.2)
    tracker.throughput.points()
    assert rates(tracker) == pytest.approx({(2, 1): 320})
    assert len(tracker.throughput.points()) == 1


@pytest.mark.parametrize("between", [(), (JobSpan(1, None),), (JobSpan(0, None),)])
def test_a_job_that_moves_with_as_many_nodes_is_measured_at_both_places(between: tuple[JobSpan, ...]) -> None:
    tracker, trainer = JobTracker("j1", OPTIONS), FakeTrainer()
    for span, seconds in ((JobSpan(2, 1), 0.1), (JobSpan(2, 0), 0.2), (JobSpan(2, None), 0.4)):
        tracker.throughput.place(span)
        train(tracker, trainer, 2, seconds)
        for other in between:
            tracker.throughput.place(other)
    assert rates(tracker) == pytest.approx({(2, 0): 320, (2, 1): 640})


def test_no_more_is_kept_than_the_limit_and_the_newest_stay() -> None:
    tracker, trainer = JobTracker("j1", OPTIONS), FakeTrainer()
    for nodes in range(2, 2 + 2 * MAX_SPAN_POINTS):
        tracker.throughput.place(JobSpan(nodes, 0))
        train(tracker, trainer, nodes, 0.1, count=20)
    tracker.throughput.points()
    assert len(tracker.throughput.span_points()) == MAX_SPAN_POINTS
    assert min(nodes for nodes, _ in rates(tracker)) == 2 + MAX_SPAN_POINTS


def test_it_is_stored_and_goes_on_after_a_restart(locate: Locate) -> None:
    tracker, trainer = JobTracker("j1", OPTIONS), FakeTrainer()
    for span in (JobSpan(2, 2), JobSpan(3, 1), JobSpan(2, 0)):
        tracker.throughput.place(span)
        train(tracker, trainer, span.nodes, 0.1)
    stored = tracker.stored()
    assert {(one.point.nodes, one.shared_levels) for one in stored.spans} == {(2, 0), (2, 2), (3, 1)}
    address = locate("monitor")
    store = MonitorStore(open_database(address))
    store.write([stored])
    store.close()
    assert MonitorStore(open_database(address)).load() == [stored]
    again = JobTracker("j1", OPTIONS, earlier=stored)
    assert again.throughput.span_points() == stored.spans


def test_a_job_may_be_placed_before_its_first_record() -> None:
    machine, trainer = MonitorMachine(JobTrackers(OPTIONS)), FakeTrainer(nodes=2)
    now = Moment(1000.0, 1.0)
    machine.advance(JobsPlaced((("j1", JobSpan(2, 1)), ("j2", JobSpan(2, 0)))), now)
    trainer.steps(40, 0.1)
    machine.advance(BatchesReported((trainer.take(),)), now)
    tracker = machine.trackers.find("j1")
    assert tracker is not None
    assert rates(tracker) == pytest.approx({(2, 1): 640})


PATHS = {"n1": ("row1", "rack1"), "n2": ("row1", "rack1"), "n3": ("row1", "rack2"), "n4": ("row2", "rack1"), "n5": ()}


def place(job_id: str, *nodes: str) -> JobPlace:
    return JobPlace(job_id, "ada", frozenset(nodes))


def test_spans_follow_jobs_and_nodes() -> None:
    spans = JobSpans()
    assert spans.note_jobs([place("j1", "n1", "n2"), place("j2", "n3")], all_jobs=True) == ()
    told = dict(spans.note_nodes(PATHS.items(), all_nodes=True))
    assert told == {"j1": JobSpan(2, 2), "j2": JobSpan(1, None)}
    assert spans.note_jobs([place("j1", "n1", "n2")], all_jobs=False) == ()
    assert spans.note_jobs([place("j1", "n1", "n3")], all_jobs=False) == (("j1", JobSpan(2, 1)),)
    assert spans.note_jobs([place("j1", "n1", "n3", "n4")], all_jobs=False) == (("j1", JobSpan(3, 0)),)
    assert spans.note_jobs([place("j1", "n1", "n5")], all_jobs=False) == (("j1", JobSpan(2, None)),)
    assert spans.note_jobs([place("j1", "n3#0", "n3#1")], all_jobs=False) == (("j1", JobSpan(2, 2)),)
    assert spans.note_jobs([place("j2", "n3")], all_jobs=True) == (("j1", JobSpan(0, None)),)


def test_a_job_may_be_told_of_a_node_before_it_is_known() -> None:
    spans = JobSpans()
    spans.note_nodes([("n1", ("rack1",))], all_nodes=True)
    assert spans.note_jobs([place("j1", "n1", "n2")], all_jobs=False) == (("j1", JobSpan(2, None)),)
    assert spans.note_nodes([("n9", ("rack9",))], all_nodes=False) == ()
    assert spans.note_nodes([("n2", ("rack1",))], ("n9",), all_nodes=False) == (("j1", JobSpan(2, 1)),)
    assert spans.note_nodes([], ("n2",), all_nodes=False) == (), "until the job is told to be elsewhere"
    assert spans.note_jobs([place("j1", "n1")], all_jobs=False) == (("j1", JobSpan(1, None)),)


def test_where_no_node_has_a_path_nothing_is_told() -> None:
    spans = JobSpans()
    spans.note_nodes(((f"n{number}", ()) for number in range(10)), all_nodes=True)
    source = random.Random(2)
    for _ in range(50):
        nodes = [f"n{number}" for number in range(10) if source.random() < 0.5]
        assert spans.note_jobs([place("j1", *nodes)], all_jobs=source.random() < 0.5) == ()
