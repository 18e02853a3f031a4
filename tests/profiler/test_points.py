"""How the error of points grows with age, and when newer points contradict them."""

from __future__ import annotations

import pytest

from malletrain.profiler.machine.points import CurvePoint, PointHistory, trusted_points
from tests.profiler.points import measured_points


def error_at(now: float) -> float:
    (point,) = PointHistory().aged(measured_points((4, 100.0), at=1000.0), now, 0.02)
    return point.relative_error


def test_the_error_grows_with_the_square_root_of_the_age_up_to_a_limit() -> None:
    assert error_at(1000.0) == 0.02
    assert error_at(1000.0 + 4 * 3600) == pytest.approx((0.02**2 + 0.04**2) ** 0.5)
    assert error_at(1000.0 + 1e9) < 0.3


def test_a_changed_rate_casts_doubt_on_older_points_at_other_scales() -> None:
    history = PointHistory().after(measured_points((1, 100.0), (8, 700.0)), 0.1)
    history = history.after([*measured_points((8, 700.0)), *measured_points((1, 70.0), at=2000.0)], 0.1)
    aged = {point.nodes: point for point in history.aged(measured_points((1, 70.0), (8, 700.0)), 1000.0, 0.0)}
    assert aged[1].relative_error == 0.02
    assert aged[8].relative_error > 0.3
    history = history.after([*measured_points((1, 70.0), at=2000.0), *measured_points((8, 500.0), at=3000.0)], 0.1)
    assert history.doubts.get(8) is None


def test_noise_casts_no_doubt() -> None:
    history = PointHistory().after(measured_points((1, 100.0), (8, 700.0), error=0.08), 0.1)
    history = history.after([*measured_points((8, 700.0)), *measured_points((1, 115.0), error=0.08, at=2000.0)], 0.1)
    assert history.doubts == {}


def test_the_best_of_uncertain_points_is_kept() -> None:
    uncertain = [CurvePoint(1, 5.0, 9, 0.9), CurvePoint(2, 9.0, 9, 0.6)]
    assert trusted_points(uncertain, 0.3) == [uncertain[1]]
    assert trusted_points([], 0.3) == []
