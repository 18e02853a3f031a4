"""Value curves: what texts mean, what is refused, and what a deadline makes of time and progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.model.goodput import GoodputTerms
from malletrain.model.job_value import (
    LINEAR,
    LINEAR_VALUE,
    MAX_SAMPLE_VALUE,
    MIN_SAMPLE_VALUE,
    Deadline,
    SpeedValue,
    ValueCurve,
    ValuePoint,
    curve_at,
)
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_values import parse_value, value_text

DAY = 86400.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("linear", LINEAR_VALUE),
        ("", LINEAR_VALUE),
        ("diminishing=0.5", SpeedValue(ValueCurve(exponent=0.5))),
        ("points=1:1,4:3", SpeedValue(ValueCurve(points=(ValuePoint(1, 1), ValuePoint(4, 3))))),
        ("deadline=24h", SpeedValue(deadline=Deadline(DAY, after_submission=True))),
        ("deadline=90m:8", SpeedValue(deadline=Deadline(5400.0, after_submission=True, urgency=8))),
        ("deadline=1790000000", SpeedValue(deadline=Deadline(1.79e9))),
        ("goodput", SpeedValue(goodput=GoodputTerms())),
        ("goodput=64", SpeedValue(goodput=GoodputTerms(64.0))),
        ("goodput=:32", SpeedValue(goodput=GoodputTerms(0.0, 32.0))),
        ("goodput=64:32:1500", SpeedValue(goodput=GoodputTerms(64.0, 32.0, 1500.0))),
    ],
)
def test_texts(text: str, value: SpeedValue) -> None:
    assert parse_value(text) == value
    assert parse_value(value_text(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        *("quadratic", "diminishing", "diminishing=0", "diminishing=1.5", "diminishing=nan", "points=", "points=1"),
        *("points=2:1,1:2", "points=0:1", "points=1:-1", "points=1:inf", "deadline=", "deadline=3600", "deadline=-1h"),
        *("deadline=1h:0.5", "deadline=1h:1000", "deadline=0s", "__import__('os')", "diminishing=__import__('os')"),
        *("goodput=x", "goodput=-1", "goodput=1:2:3:4", "goodput=nan", "goodput=1:2:1e16", "goodput=1e13"),
        *("points=1e-320:1000000", "points=0.0009:1", "points=1:1,1.1e6:2"),
        "points=" + ",".join(f"{n}:1" for n in range(1, 40)),
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--value"):
        parse_value(text)


@given(st.floats(0.001, 1.0), st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 50)), min_size=1, max_size=5))
def test_what_is_written_is_read_again(exponent: float, pairs: list[tuple[float, float]]) -> None:
    speedups = sorted({speedup for speedup, _ in pairs})
    points = tuple(ValuePoint(speedup, value) for speedup, (_, value) in zip(speedups, pairs, strict=False))
    for curve in (ValueCurve(exponent=exponent), ValueCurve(points=points)):
        assert parse_value(value_text(SpeedValue(curve))) == SpeedValue(curve)


def test_a_deadline_needs_what_is_left_in_the_time_that_is_left() -> None:
    value = SpeedValue(deadline=Deadline(1000.0, after_submission=True, urgency=3.0))
    assert curve_at(value, 500.0, 600.0, 1800.0) == ValueCurve(needed_rate=2.0, urgency=3.0)
    assert curve_at(value, 500.0, 1400.0, 1800.0) == ValueCurve(needed_rate=18.0, urgency=3.0)
    assert curve_at(value, 500.0, 1500.0, 1800.0) == LINEAR, "it has passed"
    assert curve_at(value, 500.0, 600.0, 0.0) == LINEAR, "it is done"
    assert curve_at(SpeedValue(deadline=Deadline(1000.0)), 500.0, 600.0, 400.0).needed_rate == 1.0


def test_the_most_that_a_sample_counts_for() -> None:
    assert parse_value("linear").max_sample_value == parse_value("diminishing=0.3").max_sample_value == 1.0
    assert parse_value("deadline=1h:7").max_sample_value == 7.0
    assert parse_value("points=1:0.5,2:5,4:6").max_sample_value == 2.5
    assert parse_value("points=0.001:1000000").max_sample_value == MAX_SAMPLE_VALUE
    assert ValueCurve(points=(ValuePoint(1e-320, 1e6),)).max_sample_value == MAX_SAMPLE_VALUE, (
        "stored before there was a least speedup"
    )
    assert parse_value("points=1:0").max_sample_value == MIN_SAMPLE_VALUE
