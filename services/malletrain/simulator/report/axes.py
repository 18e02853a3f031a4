"""Axes of charts: what they are called, where they have ticks, and how these are labelled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import numpy as np
from matplotlib import dates, ticker
from numpy.typing import ArrayLike

from malletrain.simulator.replay.records import DAY_S, HOUR_S
from malletrain.simulator.report.wording import moment_of, unit_of, zone_of

_YEAR_S = 365.25 * DAY_S
_DURATIONS = ((1.0, "s"), (60.0, "min"), (HOUR_S, "h"), (DAY_S, "d"))
_LOG_SECONDS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)


class Kind(Enum):
    """What the numbers of an axis are: numbers, shares of one, or lengths of time in seconds."""

    NUMBER = "number"
    SHARE = "share"
    SECONDS = "seconds"


@dataclass(frozen=True)
class Axis:
    """An axis of numbers.

    Attributes:
        label: What it shows, with the unit.
        kind: How its numbers are written.
        log: Whether it is logarithmic.
        zero: Whether it begins at 0.
    """

    label: str = ""
    kind: Kind = Kind.NUMBER
    log: bool = False
    zero: bool = False

    def set_up(self, axis: Any, values: ArrayLike) -> None:
        """Label an axis of Matplotlib.

        Args:
            axis: Its x or y axis.
            values: All that is drawn along it, for the unit of large numbers.
        """
        known = np.asarray(values, np.float64)
        most = float(np.max(np.abs(known[np.isfinite(known)]), initial=0.0))
        by, unit = unit_of(most) if self.kind is Kind.NUMBER and not self.log else (1.0, "")
        parts = [self.label, unit and f"{unit}s"]
        axis.set_label_text(", ".join(part for part in parts if part))
        if self.log:
            (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
            if self.kind is Kind.SECONDS:
                axis.set_major_locator(ticker.FixedLocator(_LOG_SECONDS))
            axis.set_minor_formatter(ticker.NullFormatter())
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: self.text(value, by)))

    def text(self, value: float, by: float = 1.0) -> str:
        """A tick's label.

        Args:
            value: The tick.
            by: What the numbers are counted in.
        """
        if self.kind is Kind.SHARE:
            return f"{round(100 * value, 6):,g} %"
        if self.kind is Kind.SECONDS:
            size, unit = next(((s, name) for s, name in reversed(_DURATIONS) if abs(value) >= s), (1.0, "s"))
            return "0" if value == 0 else f"{round(value / size, 3):,g} {unit}"
        if 0 < abs(value) < 1e-4:
            return f"{value:.12f}".rstrip("0")
        return f"{round(value / by, 9):,.6g}" if by > 1 or abs(value) < 1e6 else _large(value)


def _large(value: float) -> str:
    by, unit = unit_of(abs(value))
    return f"{value / by:,g} {unit}".strip()


@dataclass(frozen=True)
class TimeAxis:
    """The time of a trace as an x axis: dates where they are known, else the time since the trace begins.

    Attributes:
        begin: Second 0; None: not known.
        duration_s: Length in seconds.
    """

    begin: datetime | None
    duration_s: float

    @classmethod
    def of(cls, origin: str | None, duration_s: float) -> TimeAxis:
        """The axis of a trace.

        Args:
            origin: Second 0 as in the metadata of a trace.
            duration_s: Its length in seconds.
        """
        return cls(moment_of(origin, duration_s), duration_s)

    @property
    def unit(self) -> tuple[float, str]:
        """What time is counted in where dates are not known: seconds of it, and its name."""
        if self.duration_s <= 2 * HOUR_S:
            return 60.0, "minutes"
        if self.duration_s <= 4 * DAY_S:
            return HOUR_S, "hours"
        return (DAY_S, "days") if self.duration_s <= 2 * _YEAR_S else (_YEAR_S, "years")

    @property
    def label(self) -> str:
        """What the axis is called."""
        if self.begin is None:
            return f"{self.unit[1]} since the trace begins"
        return f"{_what_ticks_lack(self.begin, self.duration_s)}, {zone_of(self.begin.tzinfo)}"

    def places(self, seconds: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Positions of seconds of the trace on the axis."""
        values = np.asarray(seconds, np.float64)
        if self.begin is None:
            return values / self.unit[0]
        return values / DAY_S + float(dates.date2num(self.begin.replace(tzinfo=None)))

    def set_up(self, axes: Any) -> None:
        """Label the x axis of axes of Matplotlib."""
        axis = axes.xaxis
        axes.set_xlim(*self.places([0.0, self.duration_s]))
        axis.set_label_text(self.label)
        if self.begin is None:
            size, name = self.unit
            if name in _STEPS:
                steps, room = _STEPS[name], _room(axes)
                step = next((step for step in steps if self.duration_s / size / step <= room), steps[-1])
                axis.set_major_locator(ticker.MultipleLocator(step))
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{round(value, 6):,g}"))
            return
        locator = self._locator(_room(axes))
        axis.set_major_locator(locator)
        axis.set_major_formatter(
            dates.ConciseDateFormatter(
                locator,
                formats=["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"],
                zero_formats=["%Y", "%b\n%Y", "%d %b", "%H:%M\n%d %b", "%H:%M", "%H:%M"],
                show_offset=False,
            )
        )

    def _locator(self, room: int) -> Any:
        """Where an axis with dates has ticks, of which as many as `room` fit."""
        days = self.duration_s / DAY_S
        if _MIN_DAYS < days <= _MAX_DAYS:
            # Matplotlib would begin with the first and the 15th of each month: a month on a narrow chart has one tick.
            return ticker.MultipleLocator(next((step for step in _DAY_STEPS if days / step <= room), _DAY_STEPS[-1]))
        locator = dates.AutoDateLocator(minticks=3 if room >= _MANY_LABELS else 2, maxticks=room)
        # On narrow charts there is no room for as many as its own largest intervals make.
        for frequency, interval in ((dates.MINUTELY, 60), (dates.HOURLY, 24), (dates.MONTHLY, 12)):
            locator.intervald[frequency] = [*locator.intervald[frequency], interval]
        return locator


def _what_ticks_lack(begin: datetime, duration_s: float) -> str:
    """The day, where ticks have times only; else the year or years."""
    end = begin + timedelta(seconds=duration_s)
    if begin.date() == end.date():
        return f"{begin.day} {begin:%B %Y}"
    return f"{begin.year}" if begin.year == end.year else f"{begin.year} to {end.year}"


_STEPS = {
    "minutes": (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0),
    "hours": (1.0, 2.0, 3.0, 6.0, 12.0, 24.0, 48.0),
    "days": (1.0, 2.0, 7.0, 14.0, 28.0, 56.0, 91.0, 182.0, 364.0),
}
_MANY_LABELS = 8
_MIN_DAYS, _MAX_DAYS = 4.0, 150.0
_DAY_STEPS = (1.0, 2.0, 4.0, 7.0, 14.0, 28.0, 56.0)
_LABEL_POINTS = 50.0
"""Room for a label of time."""


def _room(axes: Any) -> int:
    """How many labels fit on an x axis."""
    return max(3, int(0.9 * 72.0 * axes.get_figure().get_figwidth() / _LABEL_POINTS))
