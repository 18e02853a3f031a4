"""How long nodes that are idle stay so: a survival curve, and the expected further stays that follow from it. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


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

    @classmethod
    def of_steps(cls, times: Sequence[float], survival: Sequence[float], tail_rate: float) -> SurvivalCurve:
        """A curve with its integrals computed; arguments as its attributes."""
        steps, shares = np.asarray(times, dtype=np.float64), np.asarray(survival, dtype=np.float64)
        integrals = np.concatenate(([0.0], np.cumsum(shares[:-1] * np.diff(steps))))
        return cls(tuple(steps.tolist()), tuple(shares.tolist()), tuple(integrals.tolist()), tail_rate)

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

    def expected_stays(self, ages: Floats, horizons: Floats) -> Floats:
        """`expected_stay` of many nodes at once.

        Args:
            ages: Idle ages in seconds, at least 0, shape (nodes,).
            horizons: How far to look ahead for each in seconds, above 0, shape (nodes,).

        Returns:
            Expected further stays in seconds, shape (nodes,).
        """
        times, survival = np.asarray(self.times), np.asarray(self.survival)
        integrals = np.asarray(self.integrals)
        last = len(times) - 1

        def step(age: Floats) -> npt.NDArray[np.intp]:
            return np.searchsorted(times, age, side="right") - 1

        def integral(age: Floats) -> Floats:
            index = step(age)
            beyond = age - times[index]
            tail = -survival[-1] * np.expm1(-self.tail_rate * beyond) / self.tail_rate
            found: Floats = integrals[index] + np.where(index < last, survival[index] * beyond, tail)
            return found

        in_steps = np.minimum(ages, times[-1])
        stays = (integral(in_steps + horizons) - integral(in_steps)) / survival[step(in_steps)]
        beyond_steps = -np.expm1(-self.tail_rate * horizons) / self.tail_rate
        found: Floats = np.where(ages >= times[-1], beyond_steps, stays)
        return found


def expected_stays(
    curve: SurvivalCurve | None,
    horizon: float,
    now: float,
    idle_since: Sequence[float],
    known_ends: Sequence[float | None],
) -> list[float]:
    """Expected further stays of nodes in seconds; 0 where nothing is known yet.

    Where the scheduler says when a node's idleness ends at the latest, the curve is still used, up to this time:
    planned starts come earlier when other jobs end early, and unplanned jobs come in between. Without a curve, the result is
    this time itself.

    Args:
        curve: The curve; None: there is none yet.
        horizon: How far to look ahead in seconds; also the largest result.
        now: Seconds since the epoch.
        idle_since: Since when each node is idle, in seconds since the epoch.
        known_ends: When its idleness ends at the latest, in seconds since the epoch; None where that is not known.
    """
    if not idle_since:
        return []
    ends = np.asarray([math.nan if end is None else end for end in known_ends], dtype=np.float64)
    horizons = np.where(np.isnan(ends), horizon, np.minimum(ends - now, horizon))
    if curve is None:
        found = np.where(np.isnan(ends), 0.0, np.maximum(horizons, 0.0))
    else:
        ages = np.maximum(now - np.asarray(idle_since, dtype=np.float64), 0.0)
        possible = np.maximum(horizons, np.finfo(np.float64).tiny)
        found = np.where(horizons > 0, curve.expected_stays(ages, possible), 0.0)
    stays: list[float] = found.tolist()
    return stays
