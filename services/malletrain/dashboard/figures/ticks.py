"""Where the axes of figures have ticks, and how these are labelled: times, numbers and lengths of time."""

from __future__ import annotations

from typing import Any

from bokeh.models import AdaptiveTicker, CompositeTicker, CustomJSHover, CustomJSTickFormatter, NoOverlap

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_NUMBER = """
for (const [size, unit] of [[1e15, "quadrillion"], [1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
  if (Math.abs(tick) >= size) return `${+(tick / size).toFixed(3)} ${unit}`;
}
return tick.toLocaleString("en-US", {maximumFractionDigits: 6});
"""
_TIME = """
const two = (number) => String(number).padStart(2, "0");
const at = new Date(tick), before = index > 0 ? new Date(ticks[index - 1]) : null;
const step = ticks.length > 1 ? ticks[1] - ticks[0] : 60000;
const month = at.toLocaleString("en-GB", {month: "short"}), year = at.getFullYear();
const otherYear = before === null || before.getFullYear() !== year;
if (step >= 28 * 86400000) return step >= 365 * 86400000 ? String(year) : `${month} ${year}`;
const day = `${two(at.getDate())} ${month}`;
if (step >= 86400000) return otherYear ? `${day}\\n${year}` : day;
const seconds = step < 60000 ? `:${two(at.getSeconds())}` : "";
const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds}`;
return before === null || before.toDateString() !== at.toDateString() ? `${time}\\n${day}` : time;
"""
_HOVER_TIME = """
const at = new Date(value), two = (number) => String(number).padStart(2, "0");
return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `
  + `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
"""
_DURATION = """
const [by, unit] = tick < 60 ? [1, "s"] : tick < 3600 ? [60, "min"] : tick < 172800 ? [3600, "h"] : [86400, "d"];
return tick === 0 ? "0" : `${(+(tick / by).toFixed(2)).toLocaleString("en-US")} ${unit}`;
"""


def label_times(axis: Any) -> None:
    """Label times from seconds to years, as the browser's clock shows them.

    Below times of day stands the date, at the first tick and where it changes.
    """
    axis.major_label_policy = NoOverlap(min_distance=8)
    axis.formatter = CustomJSTickFormatter(code=_TIME)


def hover_time() -> CustomJSHover:
    """Has a tooltip show a time as the browser's clock does; its format is `custom`."""
    return CustomJSHover(code=_HOVER_TIME)


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
