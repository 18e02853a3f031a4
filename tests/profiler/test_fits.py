"""Shapes fitted to measured points, and FLEET's extrapolation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.profiler.machine.fits import MONOTONE, all_fits, best_fit, fleet_extrapolation
from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.machine.scale_selection import disagreement

SCALES = (1, 2, 4, 8, 16, 32, 64)


def ring(a: float, b: float, c: float, scales: tuple[int, ...] = SCALES) -> list[CurvePoint]:
    return [CurvePoint(n, n / (a + b * (n - 1) / n + c * (n - 1)), 100, 0.01) for n in scales]


@given(st.floats(1e-4, 1e-2), st.floats(0, 2), st.floats(0, 0.2))
def test_a_ring_is_found_again(a: float, b: float, c: float) -> None:
    truth = ring(a, a * b, a * c)
    fit = next(fit for fit in all_fits([point for point in truth if point.nodes != 8]) if fit.name == "ring")
    assert fit.misfit < 1e-4
    for point in truth:
        assert fit.rate(point.nodes) == pytest.approx(point.rate, rel=1e-4)


@given(st.floats(1e-4, 1e-2), st.floats(0, 0.3))
def test_amdahl_is_found_again(a: float, c: float) -> None:
    truth = ring(a, 0.0, a * c)
    fits = {fit.name: fit for fit in all_fits(truth[::2])}
    for point in truth:
        assert fits["amdahl"].rate(point.nodes) == pytest.approx(point.rate, rel=1e-4)
        assert disagreement([fits["amdahl"], fits["ring"]], point.nodes) < 1e-3


@given(
    st.lists(st.floats(1, 1e5), min_size=3, max_size=7),
    st.sets(st.integers(1, 128), min_size=7, max_size=7).map(sorted),
)
def test_every_shape_is_positive_and_meets_exact_points(rates: list[float], scales: list[int]) -> None:
    points = [CurvePoint(n, rate, 10) for n, rate in zip(scales, rates, strict=False)]
    for fit in all_fits(points):
        for point in points:
            assert fit.rate(point.nodes) == pytest.approx(point.rate, rel=1e-6)
        for n in (1, 2, 3, 50, 128, 256):
            assert 0 < fit.rate(n) < math.inf
    assert best_fit(points) is not None


def test_a_knee_is_left_to_interpolation() -> None:
    truth = [CurvePoint(n, float(min(n, 8)), 100, 0.01) for n in SCALES]
    fit = best_fit(truth)
    assert fit is not None
    assert fit.name == MONOTONE
    assert fit.rate(11) == pytest.approx(8.0)


def test_uncertain_points_are_drawn_towards_the_model() -> None:
    points = ring(1e-3, 0.0, 1e-5)
    points[3] = CurvePoint(8, 1.2 * points[3].rate, 5, 0.2)
    fit = next(fit for fit in all_fits(points) if fit.name == "ring")
    assert fit.rate(8) < 1.03 * ring(1e-3, 0.0, 1e-5)[3].rate


def test_too_few_points_have_no_shape() -> None:
    assert all_fits([CurvePoint(1, 5.0)]) == ()
    assert best_fit([CurvePoint(1, 5.0), CurvePoint(2, 9.0)]) is None


class TestFleet:
    def test_equation_one(self) -> None:
        # r(8) = 100, r(7) = 90: efficiency falls by 100/90 * 7/8 with every further node.
        assert fleet_extrapolation(16, CurvePoint(8, 100.0), 90.0) == pytest.approx(
            16 * 100 / 8 * (100 / 90 * 7 / 8) ** 8
        )

    @given(st.integers(1, 64), st.integers(0, 64), st.floats(1, 1e5), st.floats(1, 1e5))
    def test_between_flat_and_linear(self, last: int, more: int, rate: float, before: float) -> None:
        found = fleet_extrapolation(last + more, CurvePoint(last, rate), before)
        assert rate * (1 - 1e-9) <= found <= rate * (last + more) / last * (1 + 1e-9)


@given(st.floats(1e-4, 1e-2), st.floats(0, 2), st.integers(1, 4), st.integers(4, 4096))
def test_a_fits_line_is_its_shape_at_scales_that_rise(a: float, b: float, smallest: int, largest: int) -> None:
    for fit in all_fits(ring(a, a * b, 0.0)):
        line = fit.line(smallest, largest)
        scales = [nodes for nodes, _ in line]
        assert scales == sorted(set(scales))
        assert (scales[0], scales[-1]) == (smallest, largest)
        assert len(line) <= 40
        if fit.name != MONOTONE:
            assert [rate for _, rate in line] == [fit.model(nodes) for nodes in scales]
