"""Expected further stays of many idle nodes at once. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from malletrain.model.survival_curve import SurvivalCurve

Floats = npt.NDArray[np.float64]


def expected_stays(
    curve: SurvivalCurve | None,
    horizon: float,
    now: float,
    idle_since: Sequence[float],
    known_ends: Sequence[float | None],
) -> list[float]:
    """Expected further stays of nodes in seconds; 0 where nothing is known yet.

    The same as `StayEstimator.expected_stay` of the Scavenger, of many nodes at once.

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
        found = np.where(horizons > 0, _within(curve, ages, possible), 0.0)
    stays: list[float] = found.tolist()
    return stays


def _within(curve: SurvivalCurve, ages: Floats, horizons: Floats) -> Floats:
    """`curve.expected_stay` of many nodes at once.

    Args:
        ages: Idle ages in seconds, at least 0, shape (nodes,).
        horizons: How far to look ahead for each in seconds, above 0, shape (nodes,).

    Returns:
        Expected further stays in seconds, shape (nodes,).
    """
    times, survival = np.asarray(curve.times), np.asarray(curve.survival)
    integrals = np.asarray(curve.integrals)
    last = len(times) - 1

    def step(age: Floats) -> npt.NDArray[np.intp]:
        return np.searchsorted(times, age, side="right") - 1

    def integral(age: Floats) -> Floats:
        index = step(age)
        beyond = age - times[index]
        tail = -survival[-1] * np.expm1(-curve.tail_rate * beyond) / curve.tail_rate
        found: Floats = integrals[index] + np.where(index < last, survival[index] * beyond, tail)
        return found

    in_steps = np.minimum(ages, times[-1])
    stays = (integral(in_steps + horizons) - integral(in_steps)) / survival[step(in_steps)]
    beyond_steps = -np.expm1(-curve.tail_rate * horizons) / curve.tail_rate
    found: Floats = np.where(ages >= times[-1], beyond_steps, stays)
    return found
