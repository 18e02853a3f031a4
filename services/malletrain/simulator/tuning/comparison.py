"""Settings compared with the present ones, paired by day, and judged by days that they were not chosen on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.allocator.auto_tuning.machine import MIN_GAIN
from malletrain.monitor.machine.throughput import student_quantile
from malletrain.simulator.tuning.settings_grid import TunedSettings, nearest

_TIE = 1e-9
_LEVEL = 0.95
_FEW_DAYS = {1: 12.706, 2: 4.303}
"""Quantiles of Student's t at 97.5 % by degrees of freedom, where its expansion is not close."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Gains of some settings over the present ones, as a share of the samples.

    Attributes:
        by_day: Gain of each day.
        mean: Their mean.
        half_width: Half-width of the 95 % interval of the mean over days; None with one day, which tells none.
    """

    by_day: tuple[float, ...]
    mean: float
    half_width: float | None

    @classmethod
    def of(cls, by_day: Sequence[float]) -> Gain:
        """Gains of at least one day (Student's t over days)."""
        days = len(by_day)
        half = None
        if days > 1:
            quantile = _FEW_DAYS.get(days - 1) or student_quantile(0.5 + _LEVEL / 2, days - 1)
            half = quantile * statistics.stdev(by_day) / math.sqrt(days)
        return cls(tuple(by_day), statistics.fmean(by_day), half)

    @property
    def may_be_none(self) -> bool:
        """Whether the interval contains 0."""
        return self.half_width is not None and abs(self.mean) <= self.half_width


@dataclass(frozen=True)
class SettingsComparison:
    """All settings that were tried.

    Attributes:
        present: The settings in force.
        gains: Gain of each of the settings over the present ones.
        best: The settings with the largest mean gain; of equal ones, those that change least.
        held_out: Gain on each day of what was best on all the others; None with one day.
    """

    present: TunedSettings
    gains: Mapping[TunedSettings, Gain]
    best: TunedSettings
    held_out: Gain | None

    @property
    def judged(self) -> Gain:
        """The gain that counts: on held-out days; with one day only, on the day that the settings were chosen on."""
        return self.gains[self.best] if self.held_out is None else self.held_out

    @property
    def recommended(self) -> TunedSettings:
        """The best settings if they gain enough, else the present ones."""
        return self.best if self.judged.mean >= MIN_GAIN else self.present


def compare(present: TunedSettings, samples: Mapping[TunedSettings, Sequence[float]]) -> SettingsComparison:
    """Compare settings.

    Args:
        present: The settings in force, which are among them.
        samples: Samples of each day with each of the settings; the same days, at least one.
    """
    reference = samples[present]
    by_day = {
        settings: [_gain(value, base) for value, base in zip(values, reference, strict=True)]
        for settings, values in samples.items()
    }
    days = range(len(reference))
    held_out = None
    if len(reference) > 1:
        held_out = Gain.of(
            [by_day[_best(by_day, present, [other for other in days if other != day])][day] for day in days]
        )
    gains = {settings: Gain.of(values) for settings, values in by_day.items()}
    return SettingsComparison(present, gains, _best(by_day, present, days), held_out)


def _gain(value: float, base: float) -> float:
    """Relative gain; from nothing to anything counts as 100 %."""
    if base <= 0:
        return 1.0 if value > 0 else 0.0
    return value / base - 1


def _best(
    by_day: Mapping[TunedSettings, Sequence[float]], present: TunedSettings, days: Sequence[int]
) -> TunedSettings:
    means = {settings: statistics.fmean(values[day] for day in days) for settings, values in by_day.items()}
    most = max(means.values())
    return nearest([settings for settings, mean in means.items() if mean >= most - _TIE], present)
