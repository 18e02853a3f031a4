"""The estimate of the gradient noise scale, from norms alone."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.noise_estimate import MIN_MEASUREMENTS, RANGE, NoiseEstimate, SquareNorms, between_steps

positive = st.floats(1e-3, 1e3)


@given(positive, positive, st.floats(1, 1e3), st.floats(1.5, 100))
def test_expected_norms_give_signal_and_noise(signal: float, noise: float, small: float, parts: float) -> None:
    """With |g_B|² = |G|² + tr(S) / B exactly, both come out."""
    big = small * parts
    norms = SquareNorms(signal + noise / small, small, signal + noise / big, big)
    assert norms.signal == pytest.approx(signal, rel=1e-6, abs=1e-9 * noise)
    assert norms.noise == pytest.approx(noise, rel=1e-6, abs=1e-6 * signal * small)


def test_two_steps_are_two_halves_of_a_batch() -> None:
    """g1 = (3, 0), g2 = (1, 2): their mean is (2, 1), with the square 5; the mean of their squares is 7."""
    assert between_steps(9.0, 5.0, 3.0, 32.0) == SquareNorms(7.0, 32.0, 5.0, 64.0)


def gaussian_norms(randoms: random.Random, dimensions: int, mean: float, workers: int, batch: int) -> SquareNorms:
    """Gradients of workers that are normal around (mean, …) with variance 1 for each sample."""
    gradients = [[mean + randoms.gauss(0, batch**-0.5) for _ in range(dimensions)] for _ in range(workers)]
    whole = [sum(parts) / workers for parts in zip(*gradients, strict=True)]
    small = sum(sum(part**2 for part in one) for one in gradients) / workers
    return SquareNorms(small, batch, sum(part**2 for part in whole), batch * workers)


@pytest.mark.parametrize(("workers", "batch"), [(2, 8), (4, 32)])
def test_it_finds_the_noise_scale_of_normal_gradients(workers: int, batch: int) -> None:
    """|G|² = 10 * 0.5², tr(S) = 10: the noise scale is 4."""
    randoms, estimate = random.Random(1), NoiseEstimate()
    for _ in range(400):
        estimate = estimate.after(gaussian_norms(randoms, 10, 0.5, workers, batch))
    assert estimate.noise_scale == pytest.approx(4.0, rel=0.15)


def test_it_is_not_known_at_first_and_follows_a_change() -> None:
    estimate, before, later = NoiseEstimate(), SquareNorms(3.0, 1.0, 2.0, 2.0), SquareNorms(11.0, 1.0, 6.0, 2.0)
    for _ in range(MIN_MEASUREMENTS):
        assert estimate.noise_scale is None
        estimate = estimate.after(before)
    assert estimate.noise_scale == pytest.approx(2.0), "|G|² = 1, tr(S) = 2"
    for _ in range(400):
        estimate = estimate.after(later)
    assert estimate.noise_scale == pytest.approx(10.0, rel=1e-2), "|G|² = 1, tr(S) = 10"


def repeated(norms: SquareNorms) -> float | None:
    estimate = NoiseEstimate()
    for _ in range(MIN_MEASUREMENTS):
        estimate = estimate.after(norms)
    return estimate.noise_scale


def test_what_cannot_be_measured_is_at_the_ends_of_the_range() -> None:
    assert repeated(SquareNorms(4.0, 1.0, 1.0, 2.0)) == 2 * RANGE, "less signal than nothing"
    assert repeated(SquareNorms(1.0, 1.0, 1.0, 2.0)) == 2 / RANGE, "no noise"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_steps_that_overflow_do_not_count(bad: float) -> None:
    assert NoiseEstimate().after(SquareNorms(bad, 1.0, 1.0, 2.0)) == NoiseEstimate()
    assert NoiseEstimate().after(SquareNorms(1.0, 2.0, 1.0, 2.0)) == NoiseEstimate(), "one batch size"


def test_its_state_is_all_of_it() -> None:
    estimate = NoiseEstimate().after(SquareNorms(3.0, 1.0, 2.0, 2.0))
    assert NoiseEstimate(**estimate.state()) == estimate  # type: ignore[arg-type]
