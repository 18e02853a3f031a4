"""How long idle nodes stay: survival curve of idle fragments, and the expected remaining stay.

The curve is the Kaplan-Meier estimator (1958): fragments that have ended are deaths, those that go on are censored. The
hazard of idle fragments falls with age: the longer a node has been idle, the longer it is expected to stay.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_AT_RISK = 10
"""A step of the curve is used only if so many fragments are still under observation there."""


@dataclass(frozen=True)
class SurvivalCurve:
    """S(t), the share of fragments longer than t seconds: steps, then an exponential tail.

    Attributes:
        times: Where the steps are, in seconds, ascending; the first is 0.
        survival: S from each step on; the first is 1, all above 0.
        integrals: Integral of S from 0 to each step, in seconds.
        tail_rate: Hazard after the last step, per second, above 0.
    """

    times: tuple[float, ...]
    survival: tuple[float, ...]
    integrals: tuple[float, ...]
    tail_rate: float

    def at(self, age: float) -> float:
        """S(age): the share of fragments longer than `age` seconds."""
        index = bisect_right(self.times, age) - 1
        if index + 1 < len(self.times):
            return self.survival[index]
        return self.survival[-1] * math.exp(-self.tail_rate * (age - self.times[-1]))

    def expected_stay(self, age: float, horizon: float) -> float:
        """Expected further stay of a node idle for `age` seconds, within the next `horizon` seconds.

        This is the restricted mean residual life: the integral of S from age to age + horizon, over S(age). The
        restriction limits the influence of a few very long fragments. O(log n).

        Args:
            age: Idle age in seconds, at least 0.
            horizon: How far to look ahead in seconds, above 0; also the largest result.
        """
        if age >= self.times[-1]:
            return -math.expm1(-self.tail_rate * horizon) / self.tail_rate
        return (self._integral(age + horizon) - self._integral(age)) / self.at(age)

    def _integral(self, age: float) -> float:
        index = bisect_right(self.times, age) - 1
        beyond = age - self.times[index]
        if index + 1 < len(self.times):
            return self.integrals[index] + self.survival[index] * beyond
        return self.integrals[-1] - self.survival[-1] * math.expm1(-self.tail_rate * beyond) / self.tail_rate


def fit(lengths: Sequence[float], censored: Sequence[float] = (), min_at_risk: int = MIN_AT_RISK) -> SurvivalCurve:
    """Kaplan-Meier curve of fragments.

    There are steps as long as at least `min_at_risk` fragments are under observation, and more than end there. After
    the last step the hazard is constant: deaths over the time observed there. With few fragments there are no steps.

    Args:
        lengths: Lengths in seconds of the fragments that have ended.
        censored: Lengths in seconds, so far, of the fragments that go on.
        min_at_risk: See above, at least 1.

    Raises:
        ValueError: there is no fragment at all, or none has lasted any time.
    """
    deaths = np.sort(np.asarray(lengths, dtype=np.float64))
    everyone = np.sort(np.concatenate((deaths, np.asarray(censored, dtype=np.float64))))
    if not everyone.size or everyone[-1] <= 0:
        raise ValueError("fragments: expected at least one that has lasted some time")
    times, ended = np.unique(deaths, return_counts=True)
    at_risk = everyone.size - np.searchsorted(everyone, times, side="left")
    believed = int(np.argmin(np.append((at_risk >= min_at_risk) & (at_risk > ended), False)))
    steps = np.concatenate(([0.0], times[:believed]))
    survival = np.concatenate(([1.0], np.cumprod(1.0 - ended[:believed] / at_risk[:believed])))
    integrals = np.concatenate(([0.0], np.cumsum(survival[:-1] * np.diff(steps))))
    tail_deaths = deaths.size - int(ended[:believed].sum())
    tail_seconds = float(np.clip(everyone - steps[-1], 0.0, None).sum())
    return SurvivalCurve(
        tuple(steps.tolist()),
        tuple(survival.tolist()),
        tuple(integrals.tolist()),
        _tail_rate(tail_deaths, tail_seconds, float(steps[-1]), float(survival[-1])),
    )


def _tail_rate(deaths: int, seconds: float, start: float, survival: float) -> float:
    """Hazard of the tail per second. At least one death is assumed, so that no expected stay is infinite."""
    if seconds > 0:
        return max(deaths, 1) / seconds
    # All fragments that outlived the last step were censored at it. The mean hazard up to there is used.
    return -math.log(survival) / start
