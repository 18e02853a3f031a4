"""Paired comparison of static and elastic trainings. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.learning.runs import Learned

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t distribution with 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class Difference:
    """What changes of scale did to one metric of one example.

    Attributes:
        seeds: Pairs of trainings.
        static: Mean of the static trainings.
        elastic: Mean of the elastic ones.
        low: Lower end of the 95 % interval of the mean difference elastic - static.
        high: Its upper end.
    """

    seeds: int
    static: float
    elastic: float
    low: float
    high: float

    @property
    def within_noise(self) -> bool:
        """Whether no difference is a plausible one."""
        return self.low <= 0.0 <= self.high


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of 2 to 10 values that are normally distributed (Student's t).

    Raises:
        ValueError: there are fewer or more values.
    """
    if not 2 <= len(differences) <= len(_T975) + 1:
        raise ValueError(f"differences: expected 2 to {len(_T975) + 1}, got {len(differences)}")
    mean = statistics.fmean(differences)
    half = _T975[len(differences) - 2] * statistics.stdev(differences) / math.sqrt(len(differences))
    return mean - half, mean + half


def compare(rows: Iterable[Learned], name: str, metric: str) -> Difference | None:
    """Compare an example's trainings, seed by seed; None with fewer than two seeds, or without that metric."""
    values: dict[int, dict[bool, float]] = {}
    for row in rows:
        if row.name == name and getattr(row, metric) is not None:
            values.setdefault(row.seed, {})[row.elastic] = getattr(row, metric)
    pairs = [(pair[False], pair[True]) for pair in values.values() if len(pair) == 2]
    if len(pairs) < 2:
        return None
    low, high = interval([elastic - static for static, elastic in pairs])
    means = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    return Difference(len(pairs), next(means), next(means), low, high)
