from __future__ import annotations

import pytest
from sqlalchemy import event

from malletrain.monitor.machine.progress import REPORTERS_KEPT
from malletrain.monitor.machine.stalls import RESCALES_KEPT
from malletrain.monitor.machine.trackers import JobTracker
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.store import MonitorStore
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.database.migrating import open_database
from tests.monitor.trainer import FakeTrainer
from tests.support.postgresql import Locate

SETTINGS = MonitorSettings().options()


def busy_job(job_id: str, rescales: int) -> tuple[FakeTrainer, JobTracker]:
    trainer, tracker = FakeTrainer(), JobTracker(job_id, SETTINGS, now=0.0)
    trainer.step(0.1)
    for index in range(rescales):
        tracker.add(trainer.take(job_id), now=1.0)
        trainer.nodes = 1 + (index + 1) % 5
        if trainer.nodes == 1:
            trainer.new_reporter(f"r{index}")
        trainer.step(2.0)
        trainer.steps(20, 0.1)
    tracker.add(trainer.take(job_id, dropped=3), now=1.0)
    return trainer, tracker


def test_what_is_written_is_loaded_again(locate: Locate) -> None:
    address = locate("monitor")
    jobs = [busy_job(name, 30)[1].stored() for name in ("j2", "j1")]
    store = MonitorStore(open_database(address))
    store.write(jobs)
    store.close()
    assert MonitorStore(open_database(address)).load() == sorted(jobs, key=lambda job: job.job_id)


def test_writing_again_and_after_a_restart_replaces(locate: Locate) -> None:
    address = locate("monitor")
    trainer, tracker = busy_job("j1", 60)
    store = MonitorStore(open_database(address))
    store.write([tracker.stored()])
    for index in range(100):
        trainer.new_reporter(f"again{index}")
        trainer.nodes = 2 + index % 2
        trainer.steps(10, 0.2)
        tracker.add(trainer.take(), now=2.0)
        store.write([tracker.stored()])
        if index == 50:
            store.close()
            store = MonitorStore(open_database(address))
            store.load()
    assert store.load() == [tracker.stored()]
    assert len(tracker.stored().rescales) == RESCALES_KEPT
    assert len(tracker.stored().reporters) <= REPORTERS_KEPT


def test_only_what_changed_is_written(locate: Locate) -> None:
    engine = open_database(locate("monitor"))
    store = MonitorStore(engine)
    trainer, tracker = busy_job("j1", 60)
    store.write([tracker.stored()])
    rows: list[int] = []

    def count(*arguments: object) -> None:
        parameters = arguments[3]
        rows.append(len(parameters) if isinstance(parameters, list) else 1)

    event.listen(engine, "before_cursor_execute", count)
    store.write([tracker.stored()])
    assert rows == []
    trainer.steps(5, 0.1)
    tracker.add(trainer.take(), now=2.0)
    store.write([tracker.stored()])
    assert 0 < sum(rows) <= 8


def test_a_write_that_fails_leaves_nothing_half_and_can_be_repeated(locate: Locate) -> None:
    engine = open_database(locate("monitor"))
    store = MonitorStore(engine)
    trainer, tracker = busy_job("j1", 10)
    store.write([tracker.stored()])
    before = tracker.stored()
    trainer.steps(30, 0.1)
    tracker.add(trainer.take(), now=2.0)

    def refuse(*arguments: object) -> None:
        if "INSERT INTO monitor_points" in str(arguments[2]):
            raise DatabaseUnavailableError("monitor")

    event.listen(engine, "before_cursor_execute", refuse)
    with pytest.raises(DatabaseUnavailableError):
        store.write([tracker.stored()])
    event.remove(engine, "before_cursor_execute", refuse)
    assert MonitorStore(engine).load() == [before]
    store.write([tracker.stored()])
    assert MonitorStore(engine).load() == [tracker.stored()]


def test_a_restored_job_goes_on_as_if_nothing_had_happened() -> None:
    trainer, tracker = busy_job("j1", 20)
    restored = JobTracker("j1", SETTINGS, now=0.0, earlier=tracker.stored())
    trainer.position -= trainer.per_node * trainer.nodes
    trainer.nodes += 1
    trainer.step(4.0)
    trainer.steps(100, 0.1)
    batch = trainer.take()
    for job in (tracker, restored):
        job.add(batch, now=2.0)
    assert restored.progress == tracker.progress
    assert restored.stalls.rescales() == tracker.stalls.rescales()
    assert restored.throughput.points() == tracker.throughput.points()


def test_what_was_stored_although_the_answer_was_lost_can_be_written_again(locate: Locate) -> None:
    engine = open_database(locate("monitor"))
    store = MonitorStore(engine)
    jobs = [busy_job("j1", 10)[1].stored()]

    def refuse(*_arguments: object) -> None:
        raise DatabaseUnavailableError("monitor")

    event.listen(engine, "before_cursor_execute", refuse)
    with pytest.raises(DatabaseUnavailableError):
        store.write(jobs)
    event.remove(engine, "before_cursor_execute", refuse)
    MonitorStore(engine).write(jobs)  # the rows are there, and the first store does not know it
    store.write(jobs)
    assert store.load() == jobs
