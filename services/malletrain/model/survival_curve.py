"""How long nodes that are idle stay so: a survival curve, and the expected further stay that follows from it. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


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
        areas = (share * (end - begin) for share, (begin, end) in zip(survival, pairwise(times), strict=False))
        return cls(tuple(times), tuple(survival), tuple(accumulate(areas, initial=0.0)), tail_rate)

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
