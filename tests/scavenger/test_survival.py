from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.machine.stays import StayEstimator, fit

_times = st.integers(1, 40).map(float)


def test_a_curve_computed_by_hand() -> None:
    # 4 at risk at 2 s: 3/4. The one that goes on at 3 s drops out; 2 at risk at 5 s: 3/4 * 1/2. The last one lived
    # 3 s beyond that, so that the tail's hazard is 1/3 per second.
    curve = fit([5, 2, 8], [3], min_at_risk=1)
    assert list(curve.times) == [0, 2, 5]
    assert list(curve.survival) == [1, 0.75, 0.375]
    assert list(curve.integrals) == [0, 2, 4.25]
    assert curve.tail_rate == pytest.approx(1 / 3)
    assert [curve.at(age) for age in (0, 1.9, 2, 4.9, 5)] == [1, 1, 0.75, 0.75, 0.375]
    assert curve.at(8) == pytest.approx(0.375 * math.exp(-1))
    assert curve.expected_stay(0, 1e9) == pytest.approx(4.25 + 0.375 * 3)
    assert curve.expected_stay(2, 3) == pytest.approx(3)
    assert curve.expected_stay(3, 4) == pytest.approx((0.75 * 2 + 0.375 * 3 * (1 - math.exp(-2 / 3))) / 0.75)
    assert curve.expected_stay(100, 1e9) == pytest.approx(3)


def test_few_fragments_have_one_hazard() -> None:
    curve = fit([100, 200], [60])
    assert list(curve.times) == [0]
    assert curve.expected_stay(0, 1e9) == curve.expected_stay(500, 1e9) == pytest.approx(180)


def test_what_has_only_been_seen_to_stay_does_not_stay_for_ever() -> None:
    assert fit([], [100, 300]).expected_stay(0, 1e9) == pytest.approx(400)
    assert fit([4, 6], [6], min_at_risk=1).expected_stay(10, 1e9) == pytest.approx(6 / -math.log(1 / 3))


@pytest.mark.parametrize("fragments", [([], []), ([], [0.0])])
def test_nothing_seen_is_an_error(fragments: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="fragments: expected at least one"):
        fit(*fragments)


@given(st.lists(_times, max_size=30), st.lists(_times, max_size=30), st.integers(1, 12))
def test_the_curve_is_that_of_kaplan_and_meier(ended: list[float], censored: list[float], at_risk: int) -> None:
    if not ended and not censored:
        ended = [1.0]
    curve = fit(ended, censored, at_risk)
    survival = 1.0
    for time in sorted(set(ended)):
        risk = sum(other >= time for other in ended + censored)
        deaths = ended.count(time)
        if risk < at_risk or risk <= deaths:
            assert time not in curve.times
            break
        survival *= 1 - deaths / risk
        assert curve.at(time) == pytest.approx(survival)
    assert curve.tail_rate > 0


@given(
    st.lists(_times, min_size=1, max_size=40),
    st.lists(_times, max_size=20),
    st.floats(0, 100),
    st.floats(0.1, 200),
)
def test_the_expected_stay_is_the_integral_of_the_curve(
    ended: list[float], censored: list[float], age: float, horizon: float
) -> None:
    curve = fit(ended, censored, min_at_risk=2)
    parts = 4000
    width = horizon / parts
    integral = sum(curve.at(age + (part + 0.5) * width) for part in range(parts)) * width
    stay = curve.expected_stay(age, horizon)
    assert stay == pytest.approx(integral / curve.at(age), rel=0.02, abs=0.02)
    assert 0 < stay <= horizon * (1 + 1e-9)


def test_idle_nodes_on_summit_have_a_falling_hazard(summit: Trace) -> None:
    ended = [entry.length_s for entry in summit.fragments if entry.idle_until_s < summit.duration_s]
    going_on = [entry.length_s for entry in summit.fragments if entry.idle_until_s >= summit.duration_s]
    curve = fit(ended, going_on)
    # Of the nodes idle for a minute about three in ten are gone two minutes later, of those idle for half an hour
    # about one in fifteen.
    assert 1 - curve.at(180) / curve.at(60) == pytest.approx(0.30, abs=0.025)
    assert 1 - curve.at(1920) / curve.at(1800) == pytest.approx(0.065, abs=0.015)
    stays = [curve.expected_stay(age, 3600) for age in (60, 180, 600, 1800)]
    assert stays == sorted(stays)
    assert stays[0] == pytest.approx(860, rel=0.1)


def test_an_estimator_knows_only_what_it_has_seen() -> None:
    stays = StayEstimator(horizon_seconds=1000)
    assert stays.expected_stay(0, 0) == 0
    stays.observe(0, {"a": -50, "b": 0})
    assert stays.expected_stay(10, 0) == 0, "nothing has left yet"
    stays.observe(100, {"b": 0})
    stays.observe(100, {"b": 0})
    # One fragment of 150 s has ended, one of 100 s goes on: 250 s a leave.
    assert stays.expected_stay(100, 0) == pytest.approx(250 * (1 - math.exp(-4)))
    stays.observe(200, {"b": 180})
    # The fragment that was missed lasted 180 s at most; the new one has lasted 20 s.
    assert stays.expected_stay(200, 180) == pytest.approx(175 * (1 - math.exp(-1000 / 175)))


def test_an_estimator_begins_with_the_past_and_forgets_the_oldest() -> None:
    stays = StayEstimator([1.0] * 5000 + [100.0] * 10_000, horizon_seconds=1000)
    assert stays.expected_stay(0, 0) == pytest.approx(100, rel=0.001)


def test_an_estimator_fits_anew_after_a_while() -> None:
    stays = StayEstimator([100.0] * 1000, horizon_seconds=1000)
    before = stays.expected_stay(0, 0)
    stays.observe(0, {"a": -900})
    stays.observe(1, {})
    assert stays.expected_stay(2, 2) == before
    assert stays.expected_stay(31, 31) > before
