from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.monitor.machine.options import MonitorOptions
from malletrain.monitor.machine.throughput import robust_rate
from malletrain.monitor.machine.trackers import JobTracker
from malletrain.monitor.settings import MonitorSettings
from tests.monitor.trainer import FakeTrainer

SETTINGS = MonitorSettings().options()


def rates_of(trainer: FakeTrainer, settings: MonitorOptions = SETTINGS) -> dict[int, float]:
    tracker = JobTracker("j1", settings, now=0.0)
    tracker.add(trainer.take(), now=1.0)
    return {point.nodes: point.rate for point in tracker.throughput.points()}


@given(
    st.floats(1e-4, 100),
    st.integers(1, 4096),
    st.integers(SETTINGS.min_steps, 300),
)
def test_a_constant_step_gives_its_exact_rate(seconds: float, samples: int, count: int) -> None:
    rate = robust_rate([(seconds, samples)] * count, 5.0, 0.1)
    assert rate == pytest.approx(samples / seconds)


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.integers(1, 512)), min_size=1, max_size=100))
def test_the_rate_lies_within_those_of_the_steps(steps: list[tuple[float, int]]) -> None:
    rate = robust_rate(steps, 5.0, 0.1)
    assert rate is not None
    single = [samples / seconds for seconds, samples in steps]
    assert min(single) * (1 - 1e-9) <= rate <= max(single) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_noise_and_heavy_tails_do_not_move_the_rate(seed: int) -> None:
    source = random.Random(seed)

    def seconds() -> float:
        step = 0.1 * max(0.2, source.gauss(1.0, 0.2))
        return step * source.uniform(5, 50) if source.random() < 0.04 else step

    trainer = FakeTrainer(nodes=2)
    trainer.steps(250, seconds)
    assert rates_of(trainer)[2] == pytest.approx(64 / 0.1, rel=0.05)


def test_slow_steps_that_are_the_rule_count_in_full() -> None:
    # A prefetching loader: three fast batches, then a wait.
    trainer = FakeTrainer()
    for index in range(200):
        trainer.step(0.1 if index % 4 == 0 else 0.001)
    assert rates_of(trainer)[1] == pytest.approx(4 * 32 / 0.103, rel=0.05)


def test_the_rescale_and_the_warm_up_are_left_out() -> None:
    settings = MonitorSettings(warmup_steps=3, warmup_seconds=0).options()
    trainer = FakeTrainer(nodes=1)
    trainer.steps(50, 0.1)
    trainer.nodes = 2
    trainer.step(18.0)
    trainer.steps(3, 2.0)
    trainer.steps(8, 0.1)
    rates = rates_of(trainer, settings)
    assert rates[1] == pytest.approx(320)
    assert rates[2] == pytest.approx(640)


def test_warm_up_seconds_are_left_out() -> None:
    settings = MonitorSettings(warmup_steps=0, warmup_seconds=5).options()
    trainer = FakeTrainer(nodes=1)
    trainer.step(0.1)
    trainer.steps(9, 0.5)
    trainer.steps(60, 0.1)
    assert rates_of(trainer, settings)[1] == pytest.approx(320)


def test_a_rollback_at_the_same_scale_is_left_out() -> None:
    trainer = FakeTrainer()
    trainer.steps(40, 0.1)
    trainer.position -= 64
    trainer.step(30.0)
    trainer.steps(40, 0.1)
    assert rates_of(trainer)[1] == pytest.approx(320)


def test_steps_with_missing_records_are_left_out() -> None:
    trainer, tracker = FakeTrainer(), JobTracker("j1", SETTINGS, now=0.0)
    for _ in range(20):
        trainer.steps(10, 0.1)
        tracker.add(trainer.take(), now=1.0)
        trainer.drop(3, 0.1)
    assert tracker.rate == pytest.approx(320)


def test_reports_without_samples_are_time_of_the_next_batch() -> None:
    steps = FakeTrainer()
    for _ in range(100):
        steps.per_node = 0
        steps.step(0.05)
        steps.per_node = 32
        steps.step(0.05)
    assert rates_of(steps)[1] == pytest.approx(320)


def test_few_steps_are_not_believed() -> None:
    trainer = FakeTrainer()
    # The first record begins the job, the second the visit.
    enough = 2 + SETTINGS.warmup_steps + SETTINGS.min_steps
    trainer.steps(enough - 1, 1.0)
    tracker = JobTracker("j1", SETTINGS, now=0.0)
    tracker.add(trainer.take(), now=1.0)
    assert tracker.throughput.points() == ()
    assert tracker.rate == 0
    trainer.step(1.0)
    tracker.add(trainer.take(), now=2.0)
    assert [point.steps for point in tracker.throughput.points()] == [SETTINGS.min_steps]


@pytest.mark.parametrize(("old_steps", "new_steps"), [(1000, 40), (40, 1000), (200, 200)])
def test_the_recent_visit_outweighs(old_steps: int, new_steps: int) -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(old_steps, 0.1)
    trainer.nodes = 1
    trainer.steps(30, 0.1)
    trainer.nodes = 2
    trainer.steps(new_steps, 0.2)
    cost = 1 / rates_of(trainer)[2]
    assert abs(cost - 0.2 / 64) < abs(cost - 0.1 / 64)


def test_a_short_visit_does_not_wipe_out_a_long_one() -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(500, 0.1)
    trainer.nodes = 1
    trainer.steps(30, 0.1)
    trainer.nodes = 2
    trainer.step(5.0)
    trainer.steps(SETTINGS.warmup_steps, 0.4)
    trainer.steps(SETTINGS.min_steps, 0.3)
    cost = 1 / rates_of(trainer)[2]
    assert 0.1 / 64 < cost < 0.2 / 64


def test_old_visits_fade() -> None:
    trainer = FakeTrainer(nodes=2)
    trainer.steps(300, 0.1)
    for _ in range(6):
        trainer.nodes = 1
        trainer.steps(30, 0.1)
        trainer.nodes = 2
        trainer.steps(60, 0.2)
    assert rates_of(trainer)[2] == pytest.approx(320, rel=0.02)


def test_points_stay_when_steps_are_dropped() -> None:
    trainer, tracker = FakeTrainer(nodes=3), JobTracker("j1", SETTINGS, now=0.0)
    trainer.steps(100, 0.1)
    tracker.add(trainer.take(), now=1.0)
    before = tracker.throughput.points()
    tracker.drop_steps()
    assert tracker.throughput.points() == before
    assert tracker.rate == before[0].rate
