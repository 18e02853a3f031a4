"""Where the axes of figures have ticks, and how these are labelled: times, numbers and lengths of time."""

from __future__ import annotations

from typing import Any

from bokeh.models import AdaptiveTicker, CompositeTicker, CustomJSTickFormatter, DatetimeTickFormatter, NoOverlap

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_NUMBER = """
for (const [size, unit] of [[1e15, "quadrillion"], [1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
  if (Math.abs(tick) >= size) return `${+(tick / size).toFixed(3)} ${unit}`;
}
return tick.toLocaleString("en-US", {maximumFractionDigits: 6});
"""
_DURATION = """
const [by, unit] = tick < 60 ? [1, "s"] : tick < 3600 ? [60, "min"] : tick < 172800 ? [3600, "h"] : [86400, "d"];
return tick === 0 ? "0" : `${(+(tick / by).toFixed(2)).toLocaleString("en-US")} ${unit}`;
"""


def label_times(axis: Any) -> None:
    """Label times from seconds to years. Below times of day stands the date, at the first tick and where it changes."""
    day = "%d %b"
    axis.major_label_policy = NoOverlap(min_distance=8)
    axis.formatter = DatetimeTickFormatter(
        seconds="%H:%M:%S",
        minsec="%H:%M:%S",
        minutes="%H:%M",
        hourmin="%H:%M",
        hours="%H:%M",
        days=day,
        months="%b %Y",
        years="%Y",
        context=DatetimeTickFormatter(
            seconds=day, minsec=day, minutes=day, hourmin=day, hours=day, days="%Y", months="", years=""
        ),
        context_which="start",
    )


def label_numbers(*axes: Any) -> None:
    """Write numbers with separators of thousands, and large ones in words."""
    for axis in axes:
        axis.formatter = CustomJSTickFormatter(code=_NUMBER)
        axis.major_label_policy = NoOverlap(min_distance=8)


def label_durations(*axes: Any) -> None:
    """Write seconds as people say them, with ticks at whole seconds, minutes, hours and days."""
    for axis in axes:
        axis.ticker = CompositeTicker(
            tickers=[
                AdaptiveTicker(base=60, mantissas=[1, 2, 5, 10, 20, 30], max_interval=_HOUR_S / 2),
                AdaptiveTicker(base=24, mantissas=[1, 2, 3, 6, 12], min_interval=_HOUR_S, max_interval=_DAY_S / 2),
                AdaptiveTicker(base=10, mantissas=[1, 2, 5], min_interval=_DAY_S),
            ]
        )
        axis.formatter = CustomJSTickFormatter(code=_DURATION)
        axis.major_label_policy = NoOverlap(min_distance=8)
