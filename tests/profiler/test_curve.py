from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.profiler.curve import (
    Cost,
    CurvePoint,
    PairStall,
    Prior,
    Source,
    estimate,
    pair_stalls,
    prior_rate,
    rescale_cost,
    single_node_rate,
)
from malletrain.profiler.isotonic import non_decreasing
from malletrain.profiler.knots import Knot
from malletrain.runtime.errors import InvalidInputError

PRIOR = Prior(rate=100.0, exponent=0.9, weight=0.25)


def knots(steps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Knot]]:
    point = st.builds(Knot, st.integers(0, 200), st.floats(0, 1e6), steps)
    return st.lists(point, max_size=8, unique_by=lambda knot: knot.nodes)


def rates(points: list[CurvePoint]) -> dict[int, float]:
    return {point.nodes: point.rate for point in points}


def sources(points: list[CurvePoint]) -> dict[int, Source]:
    return {point.nodes: point.source for point in points}


@given(st.data(), knots(st.just(0)), knots(st.integers(1, 1000)))
def test_every_estimate_is_valid_for_the_allocator(
    data: st.DataObject, declared: list[Knot], measured: list[Knot]
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
    measured = [Knot(nodes, rate, 50) for nodes, rate in zip(scales, heights, strict=False)]
    found = estimate(64, 1, [], measured, PRIOR)
    for knot in measured:
        assert rates(found)[knot.nodes] == pytest.approx(knot.rate)
        assert sources(found)[knot.nodes] == Source.MEASURED


def test_nothing_known_is_the_prior() -> None:
    points = estimate(8, 2, [], [], PRIOR)
    assert rates(points) == {nodes: pytest.approx(100 * nodes**0.9) for nodes in (1, 2, 4, 8)}
    assert set(sources(points).values()) == {Source.PRIOR}


def test_declared_alone_is_taken_as_it_is() -> None:
    points = estimate(4, 1, [Knot(0, 0), Knot(1, 50), Knot(2, 90), Knot(4, 150)], [], PRIOR)
    assert rates(points) == {1: 50, 2: 90, 4: 150}
    assert set(sources(points).values()) == {Source.DECLARED}


def test_a_declared_curve_is_cut_at_the_largest_scale() -> None:
    points = estimate(3, 1, [Knot(1, 50), Knot(2, 90), Knot(4, 150)], [], PRIOR)
    assert rates(points) == {1: 50, 2: 90, 3: 120}


def test_a_declared_curve_that_ends_early_goes_on_with_its_own_slope() -> None:
    points = estimate(64, 1, [Knot(1, 50), Knot(4, 50), Knot(16, 50)], [], PRIOR)
    assert 50 <= rates(points)[64] < 60
    assert sources(points)[64] == Source.EXTRAPOLATED


def test_measured_wins_over_declared_and_corrects_the_rest() -> None:
    declared = [Knot(1, 100), Knot(2, 200), Knot(4, 400), Knot(8, 800)]
    points = estimate(8, 1, declared, [Knot(2, 100, 50)], PRIOR)
    assert rates(points) == {1: pytest.approx(50), 2: 100, 4: pytest.approx(200), 8: pytest.approx(400)}
    assert sources(points) == {
        1: Source.EXTRAPOLATED,
        2: Source.MEASURED,
        4: Source.EXTRAPOLATED,
        8: Source.EXTRAPOLATED,
    }


def test_the_correction_is_interpolated_in_log_space_and_flat_outside() -> None:
    declared = [Knot(nodes, 100.0 * nodes) for nodes in (1, 2, 4, 8, 16)]
    points = estimate(16, 1, declared, [Knot(2, 200, 50), Knot(8, 200, 50)], PRIOR)
    found = rates(points)
    assert found[1] == pytest.approx(100)
    # Ratios 1 at 2 nodes and 1/4 at 8: their geometric mean half way, at 4.
    assert found[4] == pytest.approx(400 * 0.5)
    assert found[16] == pytest.approx(400)


def test_one_measured_point_is_extended_with_the_prior_exponent() -> None:
    found = rates(estimate(16, 1, [], [Knot(4, 1000, 50)], PRIOR))
    assert found[4] == 1000
    assert found[16] == pytest.approx(1000 * 4**0.9)
    assert found[1] == pytest.approx(1000 / 4**0.9)


def test_points_far_apart_teach_the_exponent_and_points_close_together_hardly() -> None:
    far = rates(estimate(64, 1, [], [Knot(1, 100, 50), Knot(16, 400, 50)], PRIOR))
    assert 400 * 4**0.5 < far[64] < 400 * 4**0.6
    close = rates(estimate(64, 1, [], [Knot(15, 400, 50), Knot(16, 400, 50)], PRIOR))
    assert 400 * 4**0.85 < close[64] < 400 * 4**0.9


def test_between_measured_points_lines_are_straight_in_log_space() -> None:
    found = rates(estimate(16, 1, [], [Knot(1, 100, 50), Knot(16, 1600, 50)], PRIOR))
    assert found == {nodes: pytest.approx(100 * nodes) for nodes in (1, 2, 4, 8, 16)}


@given(st.floats(0.3, 1.0), st.sets(st.integers(1, 32), min_size=3, max_size=6).map(sorted))
def test_measured_points_never_make_more_than_linear_scaling_beyond(exponent: float, scales: list[int]) -> None:
    measured = [Knot(nodes, 10 * nodes**exponent, 50) for nodes in scales]
    points = estimate(64, 1, [], measured, PRIOR)
    last = measured[-1]
    assert last.rate * (1 - 1e-9) <= rates(points)[64] <= last.rate * 64 / last.nodes * (1 + 1e-9)


def test_a_fall_is_pooled_and_well_measured_points_hold_their_ground() -> None:
    points = estimate(4, 1, [Knot(1, 10), Knot(2, 20), Knot(4, 40)], [Knot(2, 50, 1), Knot(4, 40, 99)], PRIOR)
    assert rates(points)[2] == rates(points)[4] == pytest.approx(40.1)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((4, 0, [], []), "min_nodes"),
        ((2, 3, [], []), "max_nodes"),
        ((4, 1, [Knot(2, 1), Knot(2, 3)], []), "declared.nodes"),
        ((4, 1, [], [Knot(2, -1.0)]), "measured.rate"),
        ((4, 1, [Knot(1, float("nan"))], []), "declared.rate"),
    ],
)
def test_bad_input_is_named(arguments: tuple[int, int, list[Knot], list[Knot]], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        estimate(*arguments, PRIOR)
    assert caught.value.field == field


def test_costs_measured_then_declared_then_assumed() -> None:
    assert rescale_cost(2.0, 5.0, 10.0) == Cost(2.0, Source.MEASURED)
    assert rescale_cost(None, 5.0, 10.0) == Cost(5.0, Source.DECLARED)
    assert rescale_cost(None, None, 10.0) == Cost(10.0, Source.PRIOR)
    assert rescale_cost(0.0, 5.0, 10.0) == Cost(0.0, Source.MEASURED)


def test_prior_rate_is_the_median_of_the_known_jobs() -> None:
    assert prior_rate([], 1.0) == 1.0
    assert prior_rate([0.0], 1.0) == 1.0
    assert prior_rate([10, 7000, 1200], 1.0) == 1200


def test_single_node_rate_of_a_curve_that_begins_higher() -> None:
    assert single_node_rate([CurvePoint(4, 100.0, Source.DECLARED)]) == 25
    assert single_node_rate([]) == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 100)), max_size=30))
def test_isotonic_never_falls_keeps_the_weighted_mean_and_what_rises(pairs: list[tuple[float, float]]) -> None:
    values, weights = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    fitted = non_decreasing(values, weights)
    assert all(left <= right for left, right in pairwise(fitted))
    before = sum(value * weight for value, weight in pairs)
    assert sum(value * weight for value, weight in zip(fitted, weights, strict=True)) == pytest.approx(before, abs=1e-6)
    assert non_decreasing(sorted(values), weights) == sorted(values)


class TestPairStalls:
    UP, DOWN = Cost(2.0, Source.MEASURED), Cost(1.0, Source.PRIOR)

    def test_one_measurement_moves_the_general_figure_a_little(self) -> None:
        found = pair_stalls([PairStall(4, 8, 5.0)], self.UP, self.DOWN, weight=2.0)
        assert found == (PairStall(4, 8, 3.0),)

    def test_many_outweigh_it_and_each_direction_has_its_own(self) -> None:
        measured = [*[PairStall(8, 4, 3.0)] * 98, PairStall(4, 8, 2.0)]
        up, down = pair_stalls(measured, self.UP, self.DOWN, weight=2.0)
        assert (up.from_nodes, up.to_nodes, up.seconds) == (4, 8, 2.0)
        assert down.seconds == pytest.approx(2.96)

    def test_nothing_measured_nothing_said(self) -> None:
        assert pair_stalls([], self.UP, self.DOWN, weight=2.0) == ()
