"""Which pause is the cost of which change: what JobManager has commanded decides, for any backend and any length."""

from __future__ import annotations

import pytest

from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.machine.stalls import COMMANDS_KEPT
from malletrain.monitor.machine.trackers import JobTracker, JobTrackers
from malletrain.monitor.settings import MonitorSettings
from tests.monitor.trainer import FakeTrainer

SETTINGS = MonitorSettings().options()


class Job:
    """A job whose commands Monitor is told, and which trains in steps of half a second."""

    def __init__(self, nodes: int = 1) -> None:
        self.trackers = JobTrackers(SETTINGS, [], now=0.0)
        self.trainer = FakeTrainer(nodes=nodes)
        self.number = 0
        self.command(nodes, start=True)
        self.train()

    def command(self, nodes: int, *, start: bool = False, disturbed: float = 0.0, before: int = 0) -> ScaleCommand:
        """Command a scale at this moment; `before`: from a scale that it has not reached yet."""
        self.number += 1
        from_nodes = 0 if start else before or self.trainer.nodes
        command = ScaleCommand(self.number, self.trainer.now, from_nodes, nodes, disturbed)
        self.trackers.note_command("j1", command)
        return command

    def train(self, steps: int = 20) -> None:
        self.trainer.steps(steps, 0.5)
        self.trackers.add(self.trainer.take(), now=1.0)

    def restart(self, nodes: int, seconds: float) -> None:
        """Go on at another scale in a new process, so many seconds after the last batch."""
        self.trainer.new_reporter(f"r{self.trainer.now}")
        self.trainer.nodes = nodes
        self.trainer.step(seconds)
        self.train()

    @property
    def tracker(self) -> JobTracker:
        found = self.trackers.find("j1")
        assert found is not None
        return found

    @property
    def stalls(self) -> list[tuple[int, int, float]]:
        return [(one.from_nodes, one.to_nodes, round(one.seconds, 6)) for one in self.tracker.stalls.rescales()]


@pytest.mark.parametrize("seconds", [3.0, 45.0, 600.0])
def test_a_growth_in_new_processes_is_measured_whatever_its_length(seconds: float) -> None:
    job = Job()
    job.command(2)
    job.train()  # while the next generation gets ready
    job.restart(2, seconds)
    assert job.stalls == [(1, 2, seconds - 0.5)]
    assert job.tracker.stalls.scale_up_seconds() == pytest.approx(seconds - 0.5)
    assert job.tracker.stalls.scale_down_seconds() is None


@pytest.mark.parametrize("seconds", [3.0, 600.0])
def test_so_is_a_growth_of_workers_that_stay(seconds: float) -> None:
    job = Job()
    job.command(2)
    job.train()
    job.trainer.nodes = 2
    job.trainer.step(seconds)
    job.train()
    assert job.stalls == [(1, 2, seconds - 0.5)]


def test_growth_and_shrink_are_told_apart_and_each_command_counts_once() -> None:
    job = Job()
    for nodes, seconds in ((3, 40.0), (1, 20.0), (3, 42.0)):
        job.command(nodes)
        job.restart(nodes, seconds)
    assert job.stalls == [(1, 3, 39.5), (3, 1, 19.5), (1, 3, 41.5)]


def test_a_start_on_another_scale_is_no_rescale() -> None:
    job = Job()
    job.command(2, start=True)
    job.restart(2, 15.0)
    assert job.stalls == []


def test_a_change_that_was_disturbed_is_not_attributed() -> None:
    job = Job()
    command = job.command(2)
    job.trackers.note_command("j1", ScaleCommand(command.number, command.unix_seconds, 1, 2, job.trainer.now + 14.0))
    job.restart(2, 15.0)
    assert job.stalls == []


def test_what_happens_after_its_first_batch_is_no_disturbance_of_a_change() -> None:
    """The records may arrive later than the news."""
    job = Job()
    command = job.command(2)
    lost = ScaleCommand(command.number, command.unix_seconds, 1, 2, job.trainer.now + 16.0)
    job.trackers.note_command("j1", lost)
    job.restart(2, 15.0)
    assert job.stalls == [(1, 2, 14.5)]


def test_neither_is_a_change_that_another_command_overtakes() -> None:
    job = Job()
    job.command(3)
    job.command(2, before=3, disturbed=job.trainer.now)
    job.restart(2, 15.0)
    assert job.stalls == []


def test_a_lost_worker_and_its_return_are_neither_shrink_nor_growth() -> None:
    job = Job()
    job.command(2)
    job.restart(2, 10.0)
    for nodes in (1, 2):
        job.trainer.nodes = nodes
        job.trainer.step(30.0)
        job.train()
    assert job.stalls == [(1, 2, 9.5)]


def test_a_command_during_an_evaluation_says_nothing_of_its_cost() -> None:
    job = Job()
    job.trainer.now += 60.0  # an evaluation: no batch for a minute
    job.command(2)
    job.restart(2, 10.0)
    assert job.stalls == []


def test_a_command_that_arrives_after_its_change_still_explains_it() -> None:
    """JobManager was away: its stream goes on with the newest command of each job."""
    job = Job()
    late = ScaleCommand(2, job.trainer.now, 1, 2)
    job.restart(2, 120.0)
    assert job.stalls == []
    job.trackers.note_command("j1", late)
    assert job.stalls == [(1, 2, 119.5)]
    assert [one.job_id for one in job.trackers.take_unstored()] == ["j1"]
    job.trackers.note_command("j1", late)
    assert len(job.stalls) == 1


def test_a_command_before_a_restart_of_monitor_explains_a_change_after_it_and_no_older_one() -> None:
    job = Job()
    used = job.command(2)
    job.restart(2, 10.0)
    stored = job.tracker.stored()
    job.trackers = JobTrackers(SETTINGS, [stored], now=0.0)
    job.trackers.note_command("j1", used)
    for nodes in (1, 2):  # a worker is lost and comes back
        job.trainer.nodes = nodes
        job.trainer.step(30.0)
    job.train()
    assert job.stalls == [(1, 2, 9.5)]
    job.trackers = JobTrackers(SETTINGS, [job.tracker.stored()], now=0.0)
    job.trackers.note_command("j1", ScaleCommand(9, job.trainer.now, 2, 3))
    job.restart(3, 100.0)
    assert job.stalls == [(1, 2, 9.5), (2, 3, 99.5)]


def test_the_next_command_may_be_known_before_the_records_of_the_last_change() -> None:
    job = Job()
    job.command(2)
    trainer = job.trainer
    trainer.new_reporter("next")
    trainer.nodes = 2
    trainer.step(20.0)
    trainer.steps(6, 0.5)
    job.command(3)
    job.trackers.add(trainer.take(), now=1.0)
    assert job.stalls == [(1, 2, 19.5)]


def test_last_records_that_come_late_shorten_the_pause() -> None:
    job = Job()
    job.command(2)
    old, trainer = job.trainer.reporter_id, job.trainer
    trainer.steps(8, 0.5)
    late = trainer.take()
    trainer.new_reporter("next")
    trainer.nodes = 2
    trainer.step(20.0)
    job.train()
    assert job.stalls == [(1, 2, 23.5)]
    assert late.reporter_id == old
    job.trackers.add(late, now=2.0)
    assert job.stalls == [(1, 2, 19.5)]


def test_clocks_that_are_a_little_apart_do_no_harm() -> None:
    job = Job()
    job.trackers.note_command("j1", ScaleCommand(2, job.trainer.now + 1.4, 1, 2))
    job.restart(2, 0.9)
    assert job.stalls == [(1, 2, 0.4)]


def test_commands_of_jobs_without_records_are_forgotten_when_they_have_ended() -> None:
    trackers = JobTrackers(SETTINGS, [], now=0.0)
    trackers.note_command("j1", ScaleCommand(1, 1000.0, 0, 1))
    trackers.keep_commands(["j2"])
    trainer = FakeTrainer()
    trainer.steps(20, 0.5)
    trainer.nodes = 2
    trainer.step(5.0)
    trackers.add(trainer.take(), now=1.0)
    found = trackers.find("j1")
    assert found is not None
    assert len(found.stalls.rescales()) == 1  # judged by the records alone


def test_memory_is_bounded() -> None:
    job = Job()
    for _ in range(10 * COMMANDS_KEPT):
        job.command(2)
    assert len(job.tracker.stalls.commands) == COMMANDS_KEPT
