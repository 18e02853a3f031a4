"""What Monitor's machine wants stored, published and told to metrics."""

from __future__ import annotations

from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.machine.machine import Effects, MonitorMachine
from malletrain.monitor.machine.stimuli import (
    BatchesReported,
    CountRecords,
    CountRescales,
    JobsForgotten,
    JobsKept,
    PublishDue,
    PublishProgress,
    PublishScaling,
    ScalesCommanded,
    StoreJobs,
)
from malletrain.monitor.machine.trackers import JobTrackers
from malletrain.monitor.settings import MonitorSettings
from malletrain.runtime.kernel.recording import Moment
from tests.monitor.trainer import FakeTrainer

NOW = Moment(1000.0, 1.0)


def machine_of() -> MonitorMachine:
    return MonitorMachine(JobTrackers(MonitorSettings().options(), (), NOW.monotonic))


def stored(effects: Effects) -> dict[str, int]:
    """Samples of the jobs that are to be stored."""
    return {
        job.job_id: job.progress.samples for effect in effects if isinstance(effect, StoreJobs) for job in effect.jobs
    }


def scaling(effects: Effects) -> list[str]:
    return [record.job_id for effect in effects if isinstance(effect, PublishScaling) for record in effect.records]


def report(machine: MonitorMachine, *trainers: tuple[str, FakeTrainer]) -> Effects:
    return machine.advance(BatchesReported(tuple(trainer.take(job_id) for job_id, trainer in trainers)), NOW)


def test_all_jobs_that_have_reported_are_stored_together_and_once() -> None:
    machine, first, second = machine_of(), FakeTrainer(), FakeTrainer(nodes=2)
    first.steps(3, 0.1)
    second.steps(2, 0.1)
    effects = report(machine, ("j1", first), ("j2", second))
    assert effects[:2] == (CountRecords(3, 0), CountRecords(2, 0))
    assert stored(effects) == {"j1": first.processed, "j2": second.processed}
    assert machine.trackers.sequence("j1", "r1") == 3
    assert machine.advance(BatchesReported(()), NOW) == (StoreJobs(),)


def test_records_that_are_sent_again_are_counted_once_and_stored_all_the_same() -> None:
    machine, trainer = machine_of(), FakeTrainer()
    trainer.steps(3, 0.1)
    batch = trainer.take()
    machine.advance(BatchesReported((batch,)), NOW)
    effects = machine.advance(BatchesReported((batch,)), NOW)
    assert effects[0] == CountRecords(3, 0)
    assert stored(effects) == {"j1": trainer.processed}


def test_a_rescale_is_told_once_whether_its_command_or_its_records_come_first() -> None:
    late, early = machine_of(), machine_of()
    rescales = []
    for machine, is_early in ((late, False), (early, True)):
        trainer = FakeTrainer()
        start = ScalesCommanded((("j1", ScaleCommand(1, trainer.now, 0, 1)),))
        machine.advance(start, NOW)
        trainer.steps(20, 0.5)
        machine.advance(BatchesReported((trainer.take(),)), NOW)
        growth = ScalesCommanded((("j1", ScaleCommand(2, trainer.now, 1, 2)),))
        effects = machine.advance(growth, NOW) if is_early else ()
        trainer.nodes = 2
        trainer.step(4.5)
        trainer.steps(5, 0.5)
        effects += machine.advance(BatchesReported((trainer.take(),)), NOW)
        if not is_early:
            effects = machine.advance(growth, NOW)
            assert stored(effects) == {"j1": trainer.processed}, "a rescale that was found is stored, too"
        effects += machine.advance(growth, NOW)
        rescales.append([one for effect in effects if isinstance(effect, CountRescales) for one in effect.rescales])
    assert [(one.from_nodes, one.to_nodes, one.number) for one in rescales[0]] == [(1, 2, 1)]
    assert [(one.from_nodes, one.to_nodes, one.number) for one in rescales[1]] == [(1, 2, 1)]


def test_watchers_are_told_what_has_changed_and_of_scaling_only_what_is_new() -> None:
    machine, trainer = machine_of(), FakeTrainer()
    assert machine.advance(PublishDue(), NOW) == ()
    trainer.steps(60, 0.1)
    report(machine, ("j1", trainer))
    effects = machine.advance(PublishDue(), NOW)
    assert effects[0] == PublishProgress(("j1",))
    assert scaling(effects) == ["j1"]
    # A reporter that only says that it lives changes nothing of the curve.
    report(machine, ("j1", trainer))
    assert machine.advance(PublishDue(), NOW) == (PublishProgress(("j1",)),)
    assert machine.advance(PublishDue(), NOW) == ()


def test_a_job_that_falls_silent_is_published_once_more() -> None:
    machine, trainer = machine_of(), FakeTrainer()
    trainer.steps(60, 0.1)
    report(machine, ("j1", trainer))
    machine.advance(PublishDue(), NOW)
    later = Moment(2000.0, 1001.0)
    assert machine.advance(PublishDue(), later) == (PublishProgress(("j1",)),)
    assert machine.advance(PublishDue(), later) == ()


def test_what_is_forgotten_goes_from_the_store_and_begins_anew() -> None:
    machine, trainer = machine_of(), FakeTrainer()
    trainer.steps(60, 0.1)
    report(machine, ("j1", trainer))
    machine.advance(PublishDue(), NOW)
    assert machine.advance(JobsForgotten(("j1", "unknown")), NOW) == (StoreJobs(forgotten=("j1", "unknown")),)
    assert machine.trackers.select() == []
    again = FakeTrainer()
    again.steps(60, 0.1)
    assert stored(report(machine, ("j1", again))) == {"j1": again.processed}
    assert scaling(machine.advance(PublishDue(), NOW)) == ["j1"], "although it is as before"


def test_commands_of_jobs_that_are_gone_explain_nothing() -> None:
    machine, trainer = machine_of(), FakeTrainer()
    machine.advance(ScalesCommanded((("j1", ScaleCommand(1, trainer.now, 0, 1)),)), NOW)
    machine.advance(JobsKept(("j2",)), NOW)
    trainer.steps(2, 0.1)
    report(machine, ("j1", trainer))
    tracker = machine.trackers.find("j1")
    assert tracker is not None
    assert not tracker.stalls.commands
