"""Which scale a profile measures next.

The next scale is always smaller than the present one: shrinks are cheap and growths are not (MalleTrain, Fig. 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

from malletrain.model.scaling import MIN_RATE
from malletrain.profiler.machine.fits import MIN_POINTS, MONOTONE, Fit, all_fits
from malletrain.profiler.machine.points import CurvePoint

PlannedScale = Callable[[Callable[[int], float]], int]
"""The scale that a plan would give the job, as a function of its curve (samples/s by nodes)."""

_INSENSITIVE_FACTOR = 2.0
"""How much further apart shapes may lie if the plan is the same with each of them."""


class ScaleStrategy(StrEnum):
    """Which scales are measured: where shapes disagree, every permitted one, or those of FLEET's three steps."""

    ADAPTIVE = "adaptive"
    EVERY = "every"
    FLEET = "fleet"


def candidate_scales(scales: Sequence[int]) -> list[int]:
    """The ends, and for each power of two between them the largest permitted scale that is not above it."""
    if not scales:
        return []
    candidates = {scales[0], scales[-1]}
    for power in range(scales[0].bit_length(), scales[-1].bit_length()):
        candidates.add(max(scale for scale in scales if scale <= 2**power or scale == scales[0]))
    return sorted(candidates)


def next_adaptive(
    scales: Sequence[int],
    present: int,
    known: Sequence[CurvePoint],
    visited: Collection[int],
    tolerance: float,
    planned_scale: PlannedScale | None = None,
) -> int | None:
    """The next scale below the present one that should be measured.

    1. Until three scales are known, the largest candidate scale is next.
    2. If no model meets the known points (a knee, an unexpected shape), all candidate scales are measured.
    3. Otherwise a candidate is measured only where the fitted shapes disagree by more than `tolerance`, or by more than
       twice that if the plan is the same with each of them.
    4. A scale between two candidates is added where the shapes disagree by more than twice the limit of step 3.
    5. The smallest scale is measured last in any case. It is the cheapest, and no smaller one bounds the shapes there.

    Args:
        scales: Permitted scales in nodes, ascending.
        present: The present scale in nodes.
        known: Points known so far, nodes ascending; includes those of the family.
        visited: Scales already measured in this profile.
        tolerance: Relative error that the curve may have.
        planned_scale: The plan's choice for a given curve; None: plans are not considered.

    Returns:
        A scale in nodes, or None if no further measurement is needed.
    """
    below = [scale for scale in scales if scale < present and scale not in visited]
    sure = {point.nodes for point in known if point.relative_error <= tolerance}
    candidates = [scale for scale in candidate_scales(scales) if scale in below and scale not in sure]
    if len(known) < MIN_POINTS:
        return candidates[-1] if candidates else None
    fits = all_fits(known)
    unmodelled = min(fit.misfit for fit in fits if fit.name != MONOTONE) > _INSENSITIVE_FACTOR * tolerance
    sensitive = unmodelled or (planned_scale is not None and len({planned_scale(fit.rate) for fit in fits}) > 1)
    allowed = tolerance if sensitive else _INSENSITIVE_FACTOR * tolerance
    wanted = [scale for scale in candidates if unmodelled or disagreement(fits, scale) > allowed]
    following = wanted[-1] if wanted else 0
    between = [scale for scale in below if scale > following and scale not in sure]
    worst = max(between, key=lambda scale: (disagreement(fits, scale), scale), default=None)
    if worst is not None and disagreement(fits, worst) > 2 * allowed:
        return worst
    return following or (scales[0] if scales[0] in candidates else None)


def disagreement(fits: Sequence[Fit], nodes: int) -> float:
    """How far apart shapes lie at a scale: the log of the largest over the smallest rate; infinity without shapes."""
    logs = [math.log(fit.rate(nodes)) for fit in fits]
    return max(logs) - min(logs) if logs else math.inf


def next_listed(wanted: Collection[int], present: int, visited: Collection[int]) -> int | None:
    """The largest scale of a fixed list that is below the present one and not visited; None where there is none."""
    return max((scale for scale in wanted if scale < present and scale not in visited), default=None)


def fleet_scales(single_rates: Sequence[float], base: int, scales: Sequence[int]) -> list[int]:
    """The scales that FLEET's three-step profile measures (FLEET, appendix B.3).

    Step 1 measures every job on one node. Step 2 takes the number of nodes on which the slowest of them would reach the
    fastest one's single-node rate, `M_a = ⌈max/min⌉`. Step 3 measures up to `M_t = max(M_a, M_b)`. Beyond, Eq. 1
    extrapolates.

    Args:
        single_rates: Samples/s on one node of each known job; may be empty.
        base: M_b in nodes; FLEET takes the GPUs of two nodes.
        scales: Permitted scales in nodes, ascending.
    """
    rates = [rate for rate in single_rates if rate > 0]
    largest = max(base, math.ceil(max(rates) / min(rates)) if rates else 0)
    return [scale for scale in scales if scale <= largest] or list(scales[:1])


def is_usable(min_nodes: int, max_nodes: int, points: Sequence[CurvePoint], target: float) -> bool:
    """Whether a curve is known well enough that no profile is needed.

    It is if both ends are known to within a factor of two in scale, and a scale between them unless they are within a
    factor of four of each other.

    Args:
        min_nodes: The job's smallest scale.
        max_nodes: Its largest scale.
        points: Declared or measured points, also those of the family.
        target: Relative error that profiles aim for. Points with up to twice that error count.
    """
    sure = sorted(point.nodes for point in points if point.relative_error <= 2 * target and point.rate >= MIN_RATE)
    if not sure or sure[0] > 2 * min_nodes or 2 * sure[-1] < max_nodes:
        return False
    wanted = 1 if max_nodes == min_nodes else 2 if max_nodes <= 4 * min_nodes else 3
    return len(sure) >= min(wanted, max_nodes - min_nodes + 1)
