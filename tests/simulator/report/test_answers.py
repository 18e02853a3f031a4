"""What a replay answers a manager."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import DAY_S
from malletrain.simulator.report.answers import YEAR_HOURS, HourlyRates, usable_nodes
from tests.simulator.replay.builders import idle, trainer
from tests.simulator.report.replayed import answered, half_idle, uneven


def test_half_of_each_day_is_half_of_all_node_hours() -> None:
    gain = answered(half_idle(14)).gain
    assert gain.idle_share is not None
    assert gain.node_hours == 4 * 14 * 24
    assert gain.idle_share.value == pytest.approx(0.5)
    # All days are alike.
    assert gain.idle_share.low == pytest.approx(0.5)
    assert gain.idle_share.high == pytest.approx(0.5)
    assert gain.idle_nodes == pytest.approx(2.0)


def test_a_year_is_the_logs_own_rate_and_prices_multiply_it() -> None:
    rates = HourlyRates(node_hour=2.0, gpu_hour=0.5, gpus_per_node=4, currency="EUR")
    gain = answered(half_idle(14), rates).gain
    assert gain.yearly is not None
    assert gain.yearly.node_hours.value == pytest.approx(gain.nodes.value * YEAR_HOURS)
    assert gain.measured.node_hours.value == pytest.approx(gain.nodes.value * 14 * 24)
    assert gain.yearly.gpu_hours is not None
    assert gain.yearly.money is not None
    assert gain.yearly.gpu_hours.value == pytest.approx(4 * gain.yearly.node_hours.value)
    assert gain.yearly.money.value == pytest.approx((2.0 + 4 * 0.5) * gain.yearly.node_hours.value)


def test_what_is_gained_is_the_idle_nodes_times_u() -> None:
    gain = answered(uneven(9)).gain
    assert gain.nodes.value == pytest.approx(gain.idle_nodes * gain.efficiency.value)
    assert gain.bound is not None
    assert 0.5 < gain.efficiency.value <= gain.bound + 1e-9


@pytest.mark.parametrize(("days", "yearly", "word", "count"), [(6.9, False, None, 0), (7, True, "day", 7)])
def test_a_log_shorter_than_a_week_says_nothing_of_a_year(
    days: float, yearly: bool, word: str | None, count: int
) -> None:
    answers = answered(half_idle(days))
    assert (answers.gain.yearly is not None) == yearly
    if word is None:
        assert answers.blocks is None
        assert answers.gain.nodes.low is None
    else:
        assert answers.blocks is not None
        assert (answers.blocks.word, answers.blocks.count) == (word, count)


def test_intervals_are_over_whole_weeks_where_there_are_eight() -> None:
    answers = answered(half_idle(57.5, nodes=1))
    assert answers.blocks is not None
    assert (answers.blocks.word, answers.blocks.count) == ("week", 8)


def test_an_interval_is_around_its_figure_and_the_same_for_the_same_seed() -> None:
    first, again, other = (answered(uneven(12), seed=seed).gain for seed in (1, 1, 2))
    assert first == again
    assert first.idle_share is not None
    assert other.idle_share is not None
    assert first.idle_share.low != other.idle_share.low
    assert first.idle_share.low is not None
    assert first.idle_share.high is not None
    assert first.idle_share.low < first.idle_share.value < first.idle_share.high
    assert first.nodes.low is not None
    assert first.nodes.high is not None
    assert first.nodes.low < first.nodes.value < first.nodes.high


def test_without_all_nodes_there_is_no_share() -> None:
    gain = answered(half_idle(8), all_nodes=False).gain
    assert gain.idle_share is None
    assert gain.node_hours is None
    assert gain.idle_node_hours == pytest.approx(4 * 8 * 12)


def test_a_node_counts_only_while_it_was_part_of_the_system() -> None:
    late = replace(half_idle(8), present_s={"n0": (4 * DAY_S, 8 * DAY_S)})
    late = replace(late, fragments=tuple(f for f in late.fragments if f.node != "n0" or f.idle_from_s >= 4 * DAY_S))
    gain = answered(late).gain
    assert gain.node_hours == pytest.approx(3.5 * 8 * 24)
    assert gain.idle_share is not None
    assert gain.idle_share.value == pytest.approx(0.5)


def test_what_no_training_can_use_is_no_gain() -> None:
    # Two jobs of at most four nodes, on twenty that are always idle.
    calm = idle({f"n{number}": [(0.0, 8 * DAY_S)] for number in range(20)}, 8 * DAY_S)
    answers = answered(calm)
    assert answers.gain.idle_nodes == pytest.approx(20)
    assert answers.usable_nodes == 40
    few = [trainer("a", samples=1e9)]
    assert usable_nodes(few, ReplayOptions(duration_s=1.0, max_parallel=3)) == 4
    assert usable_nodes(few, ReplayOptions(duration_s=1.0, max_parallel=3, repeat_jobs=True)) == 12


def test_a_machine_that_is_idle_throughout_is_worth_itself() -> None:
    calm = idle({f"n{number}": [(0.0, 8 * DAY_S)] for number in range(4)}, 8 * DAY_S)
    answers = answered(calm)
    assert answers.cost.taken_back == 0
    assert answers.cost.lost_share == 0.0
    assert answers.gain.nodes.value == pytest.approx(4.0, rel=1e-3)


def test_nodes_are_counted_each_time_they_are_taken_back() -> None:
    cost = answered(half_idle(10)).cost
    assert cost.taken_back == 4 * 10
    assert cost.per_day == pytest.approx(4)
    assert cost.mean_stay_s == pytest.approx(DAY_S / 2)
    assert answered(half_idle(0.75)).cost.per_day is None


def test_figures_are_finite_where_hardly_anything_is_idle() -> None:
    scarce = replace(idle({"n0": [(0.0, 0.5)], "n1": []}, 10 * DAY_S), origin=None)
    gain = answered(scarce).gain
    assert gain.idle_share is not None
    for value in (gain.idle_share.low, gain.idle_share.high, gain.nodes.value, gain.nodes.high, gain.efficiency.low):
        assert value is not None
        assert np.isfinite(value)
