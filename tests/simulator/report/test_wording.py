"""Numbers, times and shares as people write them."""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from malletrain.simulator.replay.records import DAY_S, HOUR_S
from malletrain.simulator.report import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2.0, "2"),
        (0.8345, "0.83"),
        (74.23, "74.2"),
        (361.2, "361"),
        (8_901.4, "8,901"),
        (12_345.0, "12,300"),
        (650_812.0, "650,800"),
        (3.9049e6, "3.90 million"),
        (9.122e12, "9.12 trillion"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_rounded_numbers_say_no_more_than_is_known(value: float | None, text: str) -> None:
    assert wording.round_value(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.0, "1 second"),
        (90.0, "1.5 minutes"),
        (HOUR_S, "1 hour"),
        (36 * HOUR_S, "36 hours"),
        (7 * DAY_S, "7 days"),
        (16.67 * DAY_S, "16.7 days"),
        (366 * DAY_S, "366 days"),
        (3 * 365.25 * DAY_S, "3 years"),
    ],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert wording.span(seconds) == text


def test_periods_have_times_where_they_are_short() -> None:
    begin = datetime(2021, 2, 10, 20, 21)
    assert wording.period(begin, HOUR_S) == "10 February 2021, 20:21 to 21:21"
    assert wording.period(begin, DAY_S) == "10 February 2021, 20:21 to 11 February 2021, 20:21"
    # A month that ends at midnight ends with its last day.
    assert wording.period(datetime(2026, 1, 1), 31 * DAY_S) == "1 January 2026 to 31 January 2026"


def test_zones() -> None:
    assert wording.zone_of(datetime.fromisoformat("2026-01-01T00:00:00+00:00").tzinfo) == "UTC"
    assert wording.zone_of(datetime.fromisoformat("2026-01-01T00:00:00+01:00").tzinfo) == "UTC+01:00"
    assert wording.zone_of(None) == "times of the log"


def test_shares_and_numbers() -> None:
    assert wording.share(0.0831) == "8.3 %"
    assert wording.share(None) == "–"
    assert wording.number(113_863_534_640) == "113,863,534,640"
