"""The estimated curve of a job, from declared and measured points."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.profiler.machine.curve import Prior, estimate, isotonic, prior_rate, single_node_rate
from malletrain.profiler.machine.points import CurvePoint, CurveSource
from malletrain.runtime.errors import InvalidInputError

PRIOR = Prior(rate=100.0, exponent=0.9, weight=0.25)


def curve_points(steps: st.SearchStrategy[int]) -> st.SearchStrategy[list[CurvePoint]]:
    point = st.builds(CurvePoint, st.integers(0, 200), st.floats(0, 1e6), steps)
    return st.lists(point, max_size=8, unique_by=lambda point: point.nodes)


def rates(points: list[CurvePoint]) -> dict[int, float]:
    return {point.nodes: point.rate for point in points}


def sources(points: list[CurvePoint]) -> dict[int, CurveSource]:
    return {point.nodes: point.source for point in points}


@given(st.data(), curve_points(st.just(0)), curve_points(st.integers(1, 1000)))
def test_every_estimate_is_valid_for_the_allocator(
    data: st.DataObject, declared: list[CurvePoint], measured: list[CurvePoint]
) -> None:
    min_nodes = data.draw(st.integers(1, 60))
    max_nodes = data.draw(st.integers(min_nodes, 200))
    points = estimate(max_nodes, min_nodes, declared, measured, PRIOR)
    scales = [point.nodes for point in points]
    assert scales == sorted(set(scales))
    assert 1 <= scales[0] <= min_nodes
    assert scales[-1] == max_nodes
    assert all(0 <= left.rate <= right.rate for left, right in pairwise(points))
    assert points[-1].rate < float("inf")


@given(
    st.lists(st.floats(1, 1e6), min_size=1, max_size=6).map(sorted),
    st.sets(st.integers(1, 64), min_size=6, max_size=6).map(sorted),
)
def test_measured_points_that_rise_are_kept_as_they_are(heights: list[float], scales: list[int]) -> None:
    measured = [CurvePoint(nodes, rate, 50) for nodes, rate in zip(scales, heights, strict=False)]
    found = estimate(64, 1, [], measured, PRIOR)
    for point in measured:
        assert rates(found)[point.nodes] == pytest.approx(point.rate)
        assert sources(found)[point.nodes] == CurveSource.MEASURED


def test_nothing_known_is_the_prior() -> None:
    points = estimate(8, 2, [], [], PRIOR)
    assert rates(points) == {nodes: pytest.approx(100 * nodes**0.9) for nodes in (1, 2, 4, 8)}
    assert set(sources(points).values()) == {CurveSource.PRIOR}


def test_a_declared_curve_is_used_unchanged() -> None:
    points = estimate(4, 1, [CurvePoint(0, 0), CurvePoint(1, 50), CurvePoint(2, 90), CurvePoint(4, 150)], [], PRIOR)
    assert rates(points) == {1: 50, 2: 90, 4: 150}
    assert set(sources(points).values()) == {CurveSource.DECLARED}


def test_a_declared_curve_is_cut_at_the_largest_scale() -> None:
    points = estimate(3, 1, [CurvePoint(1, 50), CurvePoint(2, 90), CurvePoint(4, 150)], [], PRIOR)
    assert rates(points) == {1: 50, 2: 90, 3: 120}


def test_a_declared_curve_that_ends_early_goes_on_with_its_own_slope() -> None:
    points = estimate(64, 1, [CurvePoint(1, 50), CurvePoint(4, 50), CurvePoint(16, 50)], [], PRIOR)
    assert 50 <= rates(points)[64] < 60
    assert sources(points)[64] == CurveSource.EXTRAPOLATED


def test_measured_wins_over_declared_and_corrects_the_rest() -> None:
    declared = [CurvePoint(1, 100), CurvePoint(2, 200), CurvePoint(4, 400), CurvePoint(8, 800)]
    points = estimate(8, 1, declared, [CurvePoint(2, 100, 50)], PRIOR)
    assert rates(points) == {1: pytest.approx(50), 2: 100, 4: pytest.approx(200), 8: pytest.approx(400)}
    assert sources(points) == {
        1: CurveSource.EXTRAPOLATED,
        2: CurveSource.MEASURED,
        4: CurveSource.EXTRAPOLATED,
        8: CurveSource.EXTRAPOLATED,
    }


def test_the_correction_is_interpolated_in_log_space_and_flat_outside() -> None:
    declared = [CurvePoint(nodes, 100.0 * nodes) for nodes in (1, 2, 4, 8, 16)]
    points = estimate(16, 1, declared, [CurvePoint(2, 200, 50), CurvePoint(8, 200, 50)], PRIOR)
    found = rates(points)
    assert found[1] == pytest.approx(100)
    # Ratios 1 at 2 nodes and 1/4 at 8: their geometric mean half way, at 4.
    assert found[4] == pytest.approx(400 * 0.5)
    assert found[16] == pytest.approx(400)


def test_one_measured_point_is_extended_with_the_prior_exponent() -> None:
    found = rates(estimate(16, 1, [], [CurvePoint(4, 1000, 50)], PRIOR))
    assert found[4] == 1000
    assert found[16] == pytest.approx(1000 * 4**0.9)
    assert found[1] == pytest.approx(1000 / 4**0.9)


def test_points_far_apart_determine_the_exponent_more_than_close_ones() -> None:
    far = rates(estimate(64, 1, [], [CurvePoint(1, 100, 50), CurvePoint(16, 400, 50)], PRIOR))
    assert 400 * 4**0.5 < far[64] < 400 * 4**0.6
    close = rates(estimate(64, 1, [], [CurvePoint(15, 400, 50), CurvePoint(16, 400, 50)], PRIOR))
    assert 400 * 4**0.85 < close[64] < 400 * 4**0.9


def test_between_measured_points_lines_are_straight_in_log_space() -> None:
    found = rates(estimate(16, 1, [], [CurvePoint(1, 100, 50), CurvePoint(16, 1600, 50)], PRIOR))
    assert found == {nodes: pytest.approx(100 * nodes) for nodes in (1, 2, 4, 8, 16)}


@given(st.floats(0.3, 1.0), st.sets(st.integers(1, 32), min_size=3, max_size=6).map(sorted))
def test_beyond_the_measured_points_scaling_is_at_most_linear(exponent: float, scales: list[int]) -> None:
    measured = [CurvePoint(nodes, 10 * nodes**exponent, 50) for nodes in scales]
    points = estimate(64, 1, [], measured, PRIOR)
    last = measured[-1]
    assert last.rate * (1 - 1e-9) <= rates(points)[64] <= last.rate * 64 / last.nodes * (1 + 1e-9)


def test_falling_points_are_pooled_by_their_weights() -> None:
    points = estimate(
        4,
        1,
        [CurvePoint(1, 10), CurvePoint(2, 20), CurvePoint(4, 40)],
        [CurvePoint(2, 50, 1), CurvePoint(4, 40, 99)],
        PRIOR,
    )
    assert rates(points)[2] == rates(points)[4] == pytest.approx(40.1)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((4, 0, [], []), "min_nodes"),
        ((2, 3, [], []), "max_nodes"),
        ((4, 1, [CurvePoint(2, 1), CurvePoint(2, 3)], []), "declared.nodes"),
        ((4, 1, [], [CurvePoint(2, -1.0)]), "measured.rate"),
        ((4, 1, [CurvePoint(1, float("nan"))], []), "declared.rate"),
    ],
)
def test_invalid_input_names_its_field(
    arguments: tuple[int, int, list[CurvePoint], list[CurvePoint]], field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        estimate(*arguments, PRIOR)
    assert caught.value.field == field


def test_prior_rate_is_the_median_of_the_known_jobs() -> None:
    assert prior_rate([], 1.0) == 1.0
    assert prior_rate([0.0], 1.0) == 1.0
    assert prior_rate([10, 7000, 1200], 1.0) == 1200


def test_single_node_rate_of_a_curve_that_begins_higher() -> None:
    assert single_node_rate([CurvePoint(4, 100.0, source=CurveSource.DECLARED)]) == 25
    assert single_node_rate([]) == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 100)), max_size=30))
def test_isotonic_never_falls_keeps_the_weighted_mean_and_what_rises(pairs: list[tuple[float, float]]) -> None:
    values, weights = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    fitted = isotonic(values, weights)
    assert all(left <= right for left, right in pairwise(fitted))
    before = sum(value * weight for value, weight in pairs)
    assert sum(value * weight for value, weight in zip(fitted, weights, strict=True)) == pytest.approx(before, abs=1e-6)
    assert isotonic(sorted(values), weights) == sorted(values)
