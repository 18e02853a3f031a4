"""How long idle nodes stay: survival curve of idle fragments, and the expected remaining stay.

The curve is the Kaplan-Meier estimator (1958): fragments that have ended are deaths, those that go on are censored. The
hazard of idle fragments falls with age: the longer a node has been idle, the longer it is expected to stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from malletrain.model.survival_curve import SurvivalCurve

MIN_AT_RISK = 10
"""A step of the curve is used only if so many fragments are still under observation there."""


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
    tail_deaths = deaths.size - int(ended[:believed].sum())
    tail_seconds = float(np.clip(everyone - steps[-1], 0.0, None).sum())
    tail_rate = _tail_rate(tail_deaths, tail_seconds, float(steps[-1]), float(survival[-1]))
    return SurvivalCurve.of_steps(steps.tolist(), survival.tolist(), tail_rate)


def _tail_rate(deaths: int, seconds: float, start: float, survival: float) -> float:
    """Hazard of the tail per second. At least one death is assumed, so that no expected stay is infinite."""
    if seconds > 0:
        return max(deaths, 1) / seconds
    # All fragments that outlived the last step were censored at it. The mean hazard up to there is used.
    return -math.log(survival) / start
