"""Training rates of members at any number of GPUs (Guan et al., MLSys 2020, Eq. 5: Eq. 1 of the supplement)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem


@dataclass(frozen=True)
class RateTable:
    """Rates of all members at all numbers of GPUs.

    Attributes:
        rows: One row for each member: samples/s at 1, 2, 3… GPUs.
        peaks: One row for each member: at place m - 1 the smallest number of GPUs up to m with the largest rate.
        beyond_peak: Whether members may get more GPUs than that.
    """

    rows: tuple[tuple[float, ...], ...]
    peaks: tuple[tuple[int, ...], ...]
    beyond_peak: BeyondPeak

    def rate(self, member: int, gpus: int) -> float:
        """Samples/s of a member on so many GPUs, at least 1."""
        return self.rows[member][gpus - 1]

    def most(self, member: int, gpus: int) -> int:
        """How many of so many GPUs, at least 1, a member may get."""
        return gpus if self.beyond_peak is BeyondPeak.ALLOW else self.peaks[member][gpus - 1]


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The short trainings from which the rates of an ensemble come.

    Attributes:
        span: M_a: how many GPUs the slowest member would need to keep up with the fastest, if it scaled linearly.
        anchor: M_b: two nodes.
        max_gpus: M_t: members are measured on 1, 2… so many GPUs.
        trainings: Their number.
        gpu_trainings: The sum of their GPUs.
    """

    span: int
    anchor: int
    max_gpus: int
    trainings: int
    gpu_trainings: int


@lru_cache(4)
def rate_table(problem: FleetProblem) -> RateTable:
    """Rates of all members of a problem at up to all of its GPUs."""
    rows = tuple(scaled_rates(model.rates, problem.gpus, problem.gpus_per_node) for model in problem.models)
    return table_of(rows, problem.beyond_peak)


def table_of(rows: tuple[tuple[float, ...], ...], beyond_peak: BeyondPeak) -> RateTable:
    """The table of such rows: of each member the samples/s at 1, 2, 3… GPUs, as many for all."""
    return RateTable(rows, tuple(_peaks(row) for row in rows), beyond_peak)


def scaled_rates(measured: Sequence[float], gpus: int, gpus_per_node: int) -> tuple[float, ...]:
    """Samples/s at 1, 2… `gpus` GPUs: what was measured, and Eq. 5 beyond.

    Eq. 5 starts at M_b, two nodes' GPUs, even where more was measured, and where less was at the largest number
    measured. It rises up to a peak and then falls. After a single measurement it is linear.
    """
    if len(measured) >= gpus:
        return tuple(measured[:gpus])
    anchor = min(2 * gpus_per_node, len(measured))
    at_anchor = measured[anchor - 1]
    per_gpu = 1.0
    if anchor > 1:
        per_gpu = min(1.0, at_anchor / measured[anchor - 2] * (anchor - 1) / anchor)
    beyond = range(len(measured) + 1, gpus + 1)
    return (*measured, *[count * at_anchor / anchor * per_gpu ** (count - anchor) for count in beyond])


def profile_plan(models: Sequence[EnsembleModel], gpus_per_node: int) -> ProfilePlan:
    """Which short trainings measure the rates of an ensemble of at least one member (supplement, profiling)."""
    singles = [model.rates[0] for model in models]
    span, anchor = math.ceil(max(singles) / min(singles)), 2 * gpus_per_node
    most = max(span, anchor)
    return ProfilePlan(span, anchor, most, len(models) * most, len(models) * most * (most + 1) // 2)


def _peaks(row: Sequence[float]) -> tuple[int, ...]:
    best, fastest, peaks = 1, row[0], []
    for count, rate in enumerate(row, 1):
        if rate > fastest:
            best, fastest = count, rate
        peaks.append(best)
    return tuple(peaks)
