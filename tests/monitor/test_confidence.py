"""Confidence intervals of measured rates, on generated and recorded step times."""

from __future__ import annotations

import csv
import math
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.monitor.machine.throughput import (
    UNKNOWN_ERROR,
    pooled_error,
    relative_error,
    robust_rate,
    student_quantile,
    without_outliers,
)

RECORDED = Path(__file__).parent / "data"
FENCE, MAX_OUTLIERS, WARMUP = 5.0, 0.1, 3


def recorded(name: str) -> list[tuple[float, int]]:
    with (RECORDED / name).open() as file:
        return [(float(row["seconds"]), int(row["samples"])) for row in csv.DictReader(file)]


def estimate(steps: list[tuple[float, int]]) -> tuple[float, float]:
    rate = robust_rate(steps, FENCE, MAX_OUTLIERS)
    assert rate is not None
    return rate, relative_error(without_outliers(steps, FENCE, MAX_OUTLIERS))


@given(st.floats(1e-4, 100), st.integers(1, 4096), st.integers(4, 300))
def test_equal_steps_are_known_exactly(seconds: float, samples: int, count: int) -> None:
    assert relative_error([(seconds, samples)] * count) == pytest.approx(0.0, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 512)), max_size=100))
def test_the_error_lies_between_nothing_and_everything(steps: list[tuple[float, int]]) -> None:
    assert 0 <= relative_error(steps) <= UNKNOWN_ERROR


def test_too_few_steps_say_nothing() -> None:
    assert relative_error([(0.1, 32)] * 3) == UNKNOWN_ERROR
    assert relative_error([(0.0, 32)] * 30) == UNKNOWN_ERROR


@pytest.mark.parametrize(("freedom", "expected"), [(3, 3.182), (5, 2.571), (15, 2.131), (1000, 1.962)])
def test_student_quantiles(freedom: int, expected: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(expected, rel=0.012)


def test_independent_figures_pool() -> None:
    assert pooled_error(0.1, 1.0, 0.1, 1.0) == pytest.approx(0.1 / 2**0.5)
    assert pooled_error(0.1, 1.0, 0.5, 0.0) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["independent", "every fourth is slow", "wandering"])
def test_the_interval_holds_the_truth_as_often_as_it_says(kind: str) -> None:
    source = random.Random(kind)
    held = 0
    for _ in range(400):
        drift, steps = 0.0, []
        for index in range(96):
            drift = 0.6 * drift + source.gauss(0.0, 0.08)
            time = {
                "independent": source.gammavariate(25, 1 / 25),
                "every fourth is slow": (2.5 if index % 4 == 0 else 0.5) * source.gammavariate(100, 1 / 100),
                "wandering": max(0.1, 1.0 + drift),
            }[kind]
            steps.append((time, 32))
        mean = sum(seconds for seconds, _ in steps) / len(steps)
        held += abs(mean - 1.0) <= relative_error(steps) * mean
    assert held / 400 >= (0.87 if kind == "wandering" else 0.92)


def test_recorded_steps_with_a_loader_and_checkpoints() -> None:
    """Recorded on a machine that others used, too: a convolutional network, a loader process, a checkpoint every 75."""
    steps = recorded("steps-cpu-loader-checkpoints.csv")[WARMUP:]
    windows = [steps[begin : begin + 50] for begin in range(0, len(steps) - 49, 50)]
    found = [estimate(window) for window in windows]
    for window, (rate, _) in zip(windows, found, strict=True):
        plain = sum(samples for _, samples in window) / sum(seconds for seconds, _ in window)
        assert plain * (1 - 1e-9) <= rate <= 1.3 * plain, "hiccups are left out, and nothing else"
    left_out = [len(window) - len(without_outliers(window, FENCE, MAX_OUTLIERS)) for window in windows]
    assert sum(count > 0 for count in left_out) >= 8, "the record has the hiccups that this is about"
    for (rate, error), (following, error_then) in pairwise(found):
        assert abs(math.log(rate / following)) <= 2 * math.hypot(error, error_then), "what the intervals say holds"
