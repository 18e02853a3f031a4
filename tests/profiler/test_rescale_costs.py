"""Rescale costs: which figure is used, and the stalls of single pairs of scales."""

from __future__ import annotations

import pytest

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.machine.curve_estimator import MIN_STALL_SECONDS, RescaleCost, rescale_cost, stalls_by_pair
from malletrain.profiler.machine.points import CurveSource


def test_costs_measured_then_declared_then_assumed() -> None:
    assert rescale_cost(2.0, 5.0, 10.0) == RescaleCost(2.0, CurveSource.MEASURED)
    assert rescale_cost(None, 5.0, 10.0) == RescaleCost(5.0, CurveSource.DECLARED)
    assert rescale_cost(None, None, 10.0) == RescaleCost(10.0, CurveSource.PRIOR)
    assert rescale_cost(None, 0.0, 10.0) == RescaleCost(0.0, CurveSource.DECLARED)


def test_no_measured_rescale_is_free() -> None:
    """Else the last digits of rates decide between plans, and jobs lose their nodes for nothing."""
    least = RescaleCost(MIN_STALL_SECONDS, CurveSource.MEASURED)
    assert rescale_cost(0.0, 5.0, 10.0) == rescale_cost(1e-7, 5.0, 10.0) == least
    assert rescale_cost(None, 5.0, 10.0, 1e-7) == RescaleCost(MIN_STALL_SECONDS, CurveSource.FAMILY)
    assert stalls_by_pair([RescaleStall(4, 8, 1e-7)] * 98, least, least, 2.0) == (
        RescaleStall(4, 8, MIN_STALL_SECONDS),
    )


class TestStallsByPair:
    UP, DOWN = RescaleCost(2.0, CurveSource.MEASURED), RescaleCost(1.0, CurveSource.PRIOR)

    def test_one_measurement_moves_the_general_figure_a_little(self) -> None:
        found = stalls_by_pair([RescaleStall(4, 8, 5.0)], self.UP, self.DOWN, weight=2.0)
        assert found == (RescaleStall(4, 8, 3.0),)

    def test_many_outweigh_it_and_each_direction_has_its_own(self) -> None:
        measured = [*[RescaleStall(8, 4, 3.0)] * 98, RescaleStall(4, 8, 2.0)]
        up, down = stalls_by_pair(measured, self.UP, self.DOWN, weight=2.0)
        assert (up.from_nodes, up.to_nodes, up.seconds) == (4, 8, 2.0)
        assert down.seconds == pytest.approx(2.96)

    def test_nothing_measured_nothing_said(self) -> None:
        assert stalls_by_pair([], self.UP, self.DOWN, weight=2.0) == ()
