"""How sure a throughput is: its confidence interval, from means of consecutive steps.

Steps of a training are not independent (a prefetching loader makes every fourth one slow, a clock rises for a while),
so the spread of single steps says too little or too much. Means of stretches of consecutive steps are nearly
independent once a stretch is longer than what binds its steps (method of batch means), and their spread gives the
interval by Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

UNKNOWN = 1.0
"""Relative error where there are too few steps to say anything."""

_MOST_BATCHES = 16
_FEWEST_BATCHES = 4
_LEVEL = 0.95


def relative_error(steps: Sequence[tuple[float, int]]) -> float:
    """Half-width of the 95 % confidence interval of the time per sample, relative to it.

    Args:
        steps: Seconds and samples (above 0) of consecutive steps, hiccups left out.

    Returns:
        At least 0; UNKNOWN with fewer than four steps or where they took no time.
    """
    batches = min(_MOST_BATCHES, len(steps))
    if batches < _FEWEST_BATCHES:
        return UNKNOWN
    length = len(steps) // batches
    # The oldest steps that fill no batch are left out: they are the likeliest to be warm-up.
    first = len(steps) - batches * length
    costs = [_cost(steps[begin : begin + length]) for begin in range(first, len(steps), length)]
    mean = statistics.fmean(costs)
    if mean <= 0:
        return UNKNOWN
    half = student_quantile(0.5 + _LEVEL / 2, batches - 1) * statistics.stdev(costs) / math.sqrt(batches)
    return min(UNKNOWN, half / mean)


def pooled_error(first: float, first_weight: float, second: float, second_weight: float) -> float:
    """Relative error of the weighted mean of two independent figures that are about equal."""
    total = first_weight + second_weight
    return math.hypot(first * first_weight, second * second_weight) / total if total > 0 else UNKNOWN


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t, from the normal one by its expansion in 1/freedom; within 1 % from 3 degrees on.

    Args:
        probability: Between 0 and 1.
        freedom: Degrees of freedom, at least 1.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    square = z * z
    terms = (
        z,
        z * (square + 1) / 4,
        z * ((5 * square + 16) * square + 3) / 96,
        z * (((3 * square + 19) * square + 17) * square - 15) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def _cost(steps: Sequence[tuple[float, int]]) -> float:
    return sum(seconds for seconds, _ in steps) / sum(samples for _, samples in steps)
