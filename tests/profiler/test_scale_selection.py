"""Which scales are measured, and which curves need no profile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.machine.scale_selection import (
    candidate_scales,
    fleet_scales,
    is_usable,
    next_adaptive,
    next_listed,
)
from tests.profiler.points import measured_points


def test_candidates_are_the_ends_and_powers_of_two() -> None:
    assert candidate_scales(range(1, 65)) == [1, 2, 4, 8, 16, 32, 64]
    assert candidate_scales(range(3, 21)) == [3, 4, 8, 16, 20]
    assert candidate_scales([6]) == [6]
    assert candidate_scales([]) == []


def test_while_little_is_known_the_next_candidate_is_measured() -> None:
    assert next_adaptive(range(1, 17), 16, [], [16], 0.05) == 8


def test_where_the_shapes_agree_nothing_more_is_measured() -> None:
    linear = measured_points((1, 10.0), (8, 80.0), (16, 160.0))
    assert next_adaptive(range(1, 17), 8, linear, [16, 8], 0.05) is None


def test_the_smallest_scale_is_measured_although_the_shapes_agree() -> None:
    linear = measured_points((4, 40.0), (8, 80.0), (16, 160.0))
    assert next_adaptive(range(1, 17), 4, linear, [16, 8, 4], 0.05) == 1
    assert next_adaptive(range(1, 17), 1, linear, [16, 8, 4, 1], 0.05) is None


def test_where_no_model_fits_all_candidates_are_measured() -> None:
    knee = measured_points((1, 10.0), (32, 85.0), (64, 90.0))
    assert next_adaptive(range(1, 65), 32, knee, [64, 32], 0.05) is not None


def test_where_the_plan_depends_on_the_shape_the_limit_is_stricter() -> None:
    bent = measured_points((1, 10.0), (8, 66.0), (16, 118.0), error=0.01)
    asked: list[float] = []

    def sensitive(rate: Callable[[int], float]) -> int:
        asked.append(rate(2))
        return len(asked) % 2

    strict = next_adaptive(range(1, 17), 8, bent, [16, 8], 0.004, sensitive)
    relaxed = next_adaptive(range(1, 17), 8, bent, [16, 8], 0.2, lambda _: 3)
    assert asked
    assert strict is not None
    assert relaxed is None


@given(st.sets(st.integers(1, 64), min_size=1).map(sorted), st.data())
def test_the_next_scale_is_smaller_permitted_and_new(scales: list[int], data: st.DataObject) -> None:
    present = data.draw(st.sampled_from(scales))
    known = [CurvePoint(n, 10.0 * n**0.8, 50, 0.04) for n in scales if n >= present][:5]
    found = next_adaptive(scales, present, known, [present], 0.05)
    assert found is None or (found < present and found in scales)


def test_fixed_lists() -> None:
    assert next_listed([1, 4, 9], 9, [9]) == 4
    assert next_listed([1], 1, [1]) is None


def test_fleets_three_steps() -> None:
    assert fleet_scales([100.0, 730.0], 2, range(1, 17)) == list(range(1, 9))
    assert fleet_scales([], 2, range(1, 17)) == [1, 2]
    assert fleet_scales([5.0], 2, [4, 8]) == [4]


@pytest.mark.parametrize(
    ("scales", "usable"),
    [((), False), ((1, 16), False), ((1, 4, 16), True), ((2, 5, 8), True), ((4, 8, 16), False), ((1, 2, 4), False)],
)
def test_which_curves_are_usable(scales: tuple[int, ...], usable: bool) -> None:
    assert is_usable(1, 16, measured_points(*((n, 10.0 * n) for n in scales)), 0.05) is usable


def test_an_uncertain_curve_is_not_usable() -> None:
    points = measured_points((1, 10.0), (4, 40.0), (16, 160.0), error=0.2)
    assert not is_usable(1, 16, points, 0.05)
