"""Numbers, times and shares as people write them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo

from malletrain.simulator.replay.records import DAY_S, HOUR_S

_UNITS = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
NONE = "–"
"""Stands for a value that there is not."""


def unit_of(most: float) -> tuple[float, str]:
    """What large numbers are counted in, and its name: (1, "") below a million."""
    return next(((size, name) for size, name in _UNITS if most >= size), (1.0, ""))


def number(value: float | None, digits: int = 0) -> str:
    """A number with separators of thousands."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def round_value(value: float | None) -> str:
    """A number with about three digits that count, so that it does not say more than it knows."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 1e6:
        by, name = unit_of(size)
        return f"{_three(value / by)} {name}"
    return f"{round(value, -2):,.0f}" if size >= 10_000 else _three(value)


def _three(value: float) -> str:
    size = abs(value)
    if size < 10 and size == round(size):
        return f"{value:.0f}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{digits}f}"


def share(value: float | None, digits: int = 1) -> str:
    """A share in per cent."""
    return NONE if value is None or not math.isfinite(value) else f"{100 * value:,.{digits}f} %"


def span(seconds: float) -> str:
    """A length of time, such as `36 minutes`, `12.5 hours`, `31 days`, `3.0 years`."""
    for size, unit in ((365.25 * DAY_S, "year"), (DAY_S, "day"), (HOUR_S, "hour"), (60.0, "minute")):
        most = 2 if unit == "year" else 2 if unit == "day" else 1
        if seconds >= most * size:
            return _count_in_words(seconds / size, unit)
    return _count_in_words(seconds, "second")


def _count_in_words(count: float, unit: str) -> str:
    whole = abs(count - round(count)) < 0.05
    text = f"{count:,.0f}" if whole or count >= 100 else f"{count:,.1f}"
    return f"{text} {unit}" if text == "1" else f"{text} {unit}s"


def date_of(begin: datetime, seconds: float) -> str:
    """A moment as a date with its time, such as `10 February 2021, 20:21`."""
    moment = begin + timedelta(seconds=seconds)
    return f"{moment.day} {moment:%B %Y, %H:%M}"


def period(begin: datetime, seconds: float) -> str:
    """A period in dates; with times where it is shorter than two weeks."""
    end = begin + timedelta(seconds=seconds)
    if seconds >= 14 * DAY_S:
        # A period that ends at midnight ends with the day before.
        last = end - timedelta(seconds=1)
        return f"{begin.day} {begin:%B %Y} to {last.day} {last:%B %Y}"
    if begin.date() == end.date():
        return f"{begin.day} {begin:%B %Y}, {begin:%H:%M} to {end:%H:%M}"
    return f"{date_of(begin, 0.0)} to {date_of(begin, seconds)}"


def zone_of(zone: tzinfo | None) -> str:
    """What the times of a zone are called."""
    if zone is None:
        return "times of the log"
    name = zone.tzname(None) or ""
    return "UTC" if zone is UTC or name in ("UTC", "UTC+00:00") else name


def moment_of(origin: str | None, duration_s: float) -> datetime | None:
    """Second 0 of a trace; None where it is not known, or no calendar has the end.

    Args:
        origin: As in the metadata of a trace, ISO 8601.
        duration_s: Length of the trace in seconds.
    """
    if origin is None:
        return None
    try:
        begin = datetime.fromisoformat(origin)
        begin + timedelta(seconds=duration_s)
    except (ValueError, OverflowError):
        return None
    return begin


def finite(value: object) -> float | None:
    """A number of a file of somebody else's; None of what is none, or larger than any that means something."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
