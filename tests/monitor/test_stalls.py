from __future__ import annotations

import random

import pytest

from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.machine.progress import PhaseSeen, RecordColumns, ReportedBatch
from malletrain.monitor.machine.stalls import RESCALES_KEPT
from malletrain.monitor.machine.trackers import JobTracker
from malletrain.monitor.settings import MonitorSettings
from tests.monitor.trainer import FakeTrainer

SETTINGS = MonitorSettings().options()


def tracked(trainer: FakeTrainer) -> JobTracker:
    tracker = JobTracker("j1", SETTINGS, now=0.0)
    tracker.add(trainer.take(), now=1.0)
    return tracker


def test_a_growth_and_a_shrink_are_measured_less_a_usual_step() -> None:
    trainer = FakeTrainer(nodes=1)
    trainer.steps(20, 0.5)
    trainer.nodes = 4
    trainer.step(10 + 0.8)
    grown_at = trainer.now
    trainer.steps(20, 0.8)
    trainer.nodes = 2
    trainer.step(1.5 + 0.6)
    trainer.steps(20, 0.6)
    tracker = tracked(trainer)
    growth, shrink = tracker.stalls.rescales()
    assert (growth.number, growth.from_nodes, growth.to_nodes) == (1, 1, 4)
    assert growth.unix_seconds == pytest.approx(grown_at)
    assert (shrink.from_nodes, shrink.to_nodes) == (4, 2)
    assert tracker.stalls.scale_up_seconds() == pytest.approx(10)
    assert tracker.stalls.scale_down_seconds() == pytest.approx(1.5)


def test_what_is_done_again_belongs_to_the_stall() -> None:
    trainer = FakeTrainer(nodes=1)
    trainer.steps(20, 0.5)
    tracker = tracked(trainer)
    tracker.stalls.note_command(ScaleCommand(1, trainer.now, 1, 2))
    trainer.new_reporter("r2")
    trainer.position -= 12 * 32
    trainer.nodes = 2
    trainer.step(4 + 0.5)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=2.0)
    assert tracker.stalls.scale_up_seconds() == pytest.approx(4 + 12 * 0.5)


def test_saving_and_loading_belong_to_the_stall() -> None:
    trainer = FakeTrainer(nodes=1)
    trainer.steps(20, 0.5)
    tracker = tracked(trainer)
    tracker.stalls.note_command(ScaleCommand(1, trainer.now, 1, 2))
    # The workers say that they save, for 90 s, and the next ones that they load, for 20 s.
    for reporter, name, seconds in (("r1", "save", 90.0), ("r2", "start", 20.0)):
        phase = PhaseSeen(name, seconds)
        tracker.add(ReportedBatch("j1", reporter, 0, RecordColumns(), 1, phase=phase), now=1.0 + seconds)
    trainer.new_reporter("r2")
    trainer.nodes = 2
    trainer.step(90 + 20 + 0.5)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=120.0)
    assert tracker.stalls.scale_up_seconds() == pytest.approx(110)


def test_before_the_first_rescale_nothing_is_known() -> None:
    trainer = FakeTrainer()
    trainer.steps(20, 0.5)
    tracker = tracked(trainer)
    assert tracker.stalls.scale_up_seconds() is None
    assert tracker.stalls.scale_down_seconds() is None


def test_a_figure_stands_at_once_and_is_refined_by_the_steps_that_follow() -> None:
    trainer = FakeTrainer(nodes=1)
    trainer.steps(20, 0.5)
    trainer.nodes = 2
    trainer.step(6.0)
    tracker = tracked(trainer)
    assert tracker.stalls.scale_up_seconds() == pytest.approx(5.5)
    trainer.steps(5, 1.0)
    trainer.steps(50, 3.0)
    tracker.add(trainer.take(), now=2.0)
    assert tracker.stalls.scale_up_seconds() == pytest.approx(5.0)


def test_a_rescale_without_any_stall_costs_nothing() -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(20, 0.5)
    trainer.nodes = 1
    trainer.step(0.2)
    trainer.steps(20, 0.5)
    assert tracked(trainer).stalls.scale_down_seconds() == 0


def test_a_kill_is_a_shrink_with_its_time_out() -> None:
    trainer = FakeTrainer(nodes=3)
    trainer.steps(20, 0.5)
    trainer.position -= 4 * 96
    trainer.nodes = 2
    trainer.step(30.0)
    trainer.steps(20, 0.5)
    assert tracked(trainer).stalls.scale_down_seconds() == pytest.approx(29.5 + 4 * 0.5)


def test_a_shrink_that_takes_rank_0_away_counts() -> None:
    trainer, tracker = FakeTrainer(nodes=3), JobTracker("j1", SETTINGS, now=0.0)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=1.0)
    trainer.new_reporter("r2")
    trainer.nodes = 2
    trainer.step(2.5)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=2.0)
    assert tracker.stalls.scale_down_seconds() == pytest.approx(2.0)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_start_of_all_processes_anew_is_no_growth(nodes: int) -> None:
    trainer, tracker = FakeTrainer(nodes=2), JobTracker("j1", SETTINGS, now=0.0)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=1.0)
    trainer.new_reporter("r2")
    trainer.position -= 96
    trainer.nodes = nodes
    trainer.step(20)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=2.0)
    assert tracker.stalls.rescales() == ()


def test_a_long_gap_is_a_start_from_nothing() -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(20, 0.5)
    trainer.nodes = 4
    trainer.step(SETTINGS.cold_gap_seconds + 1)
    trainer.steps(20, 0.5)
    trainer.nodes = 1
    trainer.step(SETTINGS.cold_gap_seconds + 1)
    assert tracked(trainer).stalls.rescales() == ()


def test_a_gap_with_missing_records_or_a_clock_set_back_tells_nothing() -> None:
    trainer, tracker = FakeTrainer(nodes=2), JobTracker("j1", SETTINGS, now=0.0)
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=1.0)
    trainer.drop(4, 0.5)
    trainer.nodes = 4
    trainer.steps(20, 0.5)
    trainer.now -= 100
    trainer.nodes = 1
    trainer.steps(20, 0.5)
    tracker.add(trainer.take(), now=2.0)
    assert tracker.stalls.rescales() == ()


def test_the_median_shrugs_off_a_freak() -> None:
    trainer = FakeTrainer(nodes=1)
    for stall in (5.0, 6.0, 80.0, 5.0, 5.5):
        trainer.steps(20, 0.5)
        trainer.nodes = 2
        trainer.step(stall + 0.5)
        trainer.steps(20, 0.5)
        trainer.nodes = 1
        trainer.step(1.0)
    assert tracked(trainer).stalls.scale_up_seconds() == pytest.approx(5.5)


def test_the_newest_rescales_are_kept_in_order() -> None:
    trainer, source = FakeTrainer(nodes=1), random.Random(1)
    for _ in range(3 * RESCALES_KEPT):
        trainer.nodes = source.choice([nodes for nodes in (1, 2, 3) if nodes != trainer.nodes])
        trainer.step(3.0)
        trainer.steps(2, 0.5)
    kept = tracked(trainer).stalls.rescales()
    assert [rescale.number for rescale in kept] == list(range(2 * RESCALES_KEPT, 3 * RESCALES_KEPT))
