"""Which trials of a search are promising, and the weights that their jobs get for that. Pure.

A trial is compared with others at a step that they have reached, too, as the median rule of Optuna's pruners does
(Golovin et al., Google Vizier, KDD 2017): whoever has trained for longer is not better for that alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import floor, log2

MIN_COMPARED = 3
"""A trial that fewer others can be compared with is not judged."""
MAX_FAVOUR = 64.0


def promising_weights(
    logged: Mapping[int, Mapping[int, float]],
    running: Collection[int],
    *,
    maximize: bool,
    base: float,
    favour: float,
) -> dict[int, float]:
    """The weights of jobs of running trials: `base` times a power of 2, which is `favour` at most.

    The exponent follows the share of the others that a trial is better than, above one half: an average trial has the
    weight `base`. Powers of 2, so that weights do not change with each value that is logged.

    Args:
        logged: Values of all trials, running and ended, by step.
        running: The trials that are asked about.
        maximize: Whether large values are good.
        base: The weight that trials are submitted with.
        favour: How many times that the best have, 1 to `MAX_FAVOUR`.
    """
    reached = {trial: max(values) for trial, values in logged.items() if values}
    return {
        trial: base * 2.0 ** floor(log2(favour) * max(0.0, 2 * share - 1))
        for trial in running
        for share in (_share_beaten(trial, logged, reached, maximize=maximize),)
    }


def _share_beaten(
    trial: int, logged: Mapping[int, Mapping[int, float]], reached: Mapping[int, int], *, maximize: bool
) -> float:
    """Share of the others that a trial is better than, at the newest of its steps that enough of them have reached.

    Equal ones count half; 0: it can't be judged.
    """
    for step in sorted(logged.get(trial, ()), reverse=True):
        others = [other for other, last in reached.items() if other != trial and last >= step]
        values = [value for other in others if (value := _value_at(logged[other], step)) is not None]
        if len(values) >= MIN_COMPARED:
            own = logged[trial][step]
            beaten = sum((own > value) if maximize else (own < value) for value in values)
            return (beaten + sum(own == value for value in values) / 2) / len(values)
    return 0.0


def _value_at(values: Mapping[int, float], step: int) -> float | None:
    """The value at a step, or else at the newest one before: histories are thinned."""
    before = [known for known in values if known <= step]
    return values[max(before)] if before else None
