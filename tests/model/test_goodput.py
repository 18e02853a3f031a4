"""Statistical efficiency: what always holds of it, and what is declared and told of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.model.goodput import (
    MAX_BATCH,
    MAX_NOISE_SCALE,
    MIN_NOISE_SCALE,
    GoodputTerms,
    GradientNoise,
    StatisticalEfficiency,
    efficiency,
)
from malletrain.model.job_value import LINEAR, ValueCurve, goodput_curve
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_values import check_curve

noise_scales = st.floats(MIN_NOISE_SCALE, MAX_NOISE_SCALE)
batches = st.floats(1.0, MAX_BATCH)


@given(noise_scales, batches, batches)
def test_it_is_above_nothing_and_at_most_one(noise_scale: float, initial: float, batch: float) -> None:
    assert 0 < efficiency(noise_scale, initial, batch) <= 1


@given(noise_scales, batches)
def test_the_initial_batch_and_smaller_ones_have_one(noise_scale: float, initial: float) -> None:
    assert efficiency(noise_scale, initial, initial) == 1
    assert efficiency(noise_scale, initial, initial / 2) == 1


@given(noise_scales, batches, batches, st.floats(1.0, 1e6))
def test_it_falls_with_the_batch(noise_scale: float, initial: float, batch: float, factor: float) -> None:
    assert efficiency(noise_scale, initial, batch * factor) <= efficiency(noise_scale, initial, batch)


@given(noise_scales, st.floats(1.0, 1e4), st.floats(1.01, 1e3))
def test_goodput_still_grows_with_the_batch(noise_scale: float, initial: float, factor: float) -> None:
    """At the same time for a step a larger batch never learns less: M * efficiency(M) is increasing."""
    small, large = initial, initial * factor
    assert large * efficiency(noise_scale, initial, large) >= small * efficiency(noise_scale, initial, small)


@given(batches, batches)
def test_it_is_one_where_noise_is_all(initial: float, batch: float) -> None:
    assert efficiency(math.inf, initial, batch) == 1
    assert efficiency(1e9 * max(initial, batch), initial, batch) == pytest.approx(1, abs=1e-8)


def test_known_values() -> None:
    """phi = 300, M0 = 100: a batch of 500 has (300 + 100) / (300 + 500)."""
    assert efficiency(300, 100, 500) == 0.5
    assert StatisticalEfficiency(300, 50, 100).at(10) == 0.5


def test_what_is_told_and_what_is_declared() -> None:
    told = GradientNoise(1000.0, 32.0)
    assert GoodputTerms().efficiency(None, 1) is None
    assert GoodputTerms().efficiency(told, 2) == StatisticalEfficiency(1000.0, 32.0, 64.0)
    assert GoodputTerms(initial_batch=256.0).efficiency(told, 2) == StatisticalEfficiency(1000.0, 32.0, 256.0)
    declared = GoodputTerms(0.0, 16.0, 500.0)
    assert declared.efficiency(None, 1) == StatisticalEfficiency(500.0, 16.0, 16.0), "until it is told"
    assert declared.efficiency(told, 1) == StatisticalEfficiency(1000.0, 16.0, 16.0), "of the batch what is declared"


def test_a_batch_that_stays_the_same_has_linear_value() -> None:
    assert goodput_curve(GoodputTerms(), GradientNoise(1000.0, 0.0), 1) == LINEAR
    assert goodput_curve(GoodputTerms(), None, 1) == LINEAR
    known = goodput_curve(GoodputTerms(), GradientNoise(1000.0, 8.0), 1)
    assert known == ValueCurve(efficiency=StatisticalEfficiency(1000.0, 8.0, 8.0))
    assert not known.linear
    assert known.max_sample_value == 1.0


@given(st.builds(GradientNoise, noise_scales, st.floats(0, MAX_BATCH)), st.integers(1, 10**6))
def test_whatever_is_told_gives_a_curve_that_problems_accept(told: GradientNoise, min_nodes: int) -> None:
    check_curve("value", goodput_curve(GoodputTerms(), told, min_nodes))


@pytest.mark.parametrize("field", ["noise_scale", "batch_per_node", "initial_batch"])
def test_figures_of_problems_are_checked(field: str) -> None:
    figures = {"noise_scale": 1.0, "batch_per_node": 1.0, "initial_batch": 1.0, field: math.nan}
    with pytest.raises(InvalidInputError, match=field):
        check_curve("value", ValueCurve(efficiency=StatisticalEfficiency(**figures)))
