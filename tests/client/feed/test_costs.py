"""What preparing costs is told once it rests on some samples, and follows the newer ones."""

from __future__ import annotations

import pytest

from malletrain.client.feeding.preparing import MIN_SAMPLES, PreparingCosts


def test_costs_are_told_once_they_rest_on_some_samples() -> None:
    costs = PreparingCosts()
    for _ in range(MIN_SAMPLES - 1):
        costs.add(0.01)
        assert costs.cpu_seconds == 0
    costs.add(0.01)
    assert costs.cpu_seconds == pytest.approx(0.01)
    assert costs.samples == MIN_SAMPLES


def test_newer_samples_count_more() -> None:
    costs = PreparingCosts()
    for seconds in (0.01, 0.03):
        for _ in range(5000):
            costs.add(seconds)
        assert costs.cpu_seconds == pytest.approx(seconds, rel=0.01)


def test_a_clock_that_goes_back_costs_nothing() -> None:
    costs = PreparingCosts()
    for _ in range(MIN_SAMPLES):
        costs.add(-1.0)
    assert costs.cpu_seconds == 0
