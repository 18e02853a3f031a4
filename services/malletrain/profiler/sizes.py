"""Which scale is measured next. Always a smaller one than the present: shrinks are cheap, growths are not (Fig. 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

from malletrain.profiler.fits import FEWEST_POINTS, MONOTONE, Fit, all_fits
from malletrain.profiler.knots import Knot

PlanSize = Callable[[Callable[[int], float]], int]
"""The scale that a plan would give the job if its samples/s by nodes were these."""

_UNDECIDED = 2.0
"""How much further apart shapes may lie where the plan is the same with each of them."""


class Strategy(StrEnum):
    """How scales are chosen."""

    ADAPTIVE = "adaptive"
    EVERY = "every"
    FLEET = "fleet"


def permitted_scales(min_nodes: int, max_nodes: int, permitted: Sequence[int]) -> list[int]:
    """Scales in nodes at which a job may run, ascending."""
    return list(permitted) if permitted else list(range(min_nodes, max_nodes + 1))


def landmarks(scales: Sequence[int]) -> list[int]:
    """The ends and, for each power of two between them, the nearest permitted scale at or below it."""
    if not scales:
        return []
    found = {scales[0], scales[-1]}
    for power in range(scales[0].bit_length(), scales[-1].bit_length()):
        found.add(max(scale for scale in scales if scale <= 2**power or scale == scales[0]))
    return sorted(found)


def next_adaptive(
    scales: Sequence[int],
    present: int,
    known: Sequence[Knot],
    visited: Collection[int],
    tolerance: float,
    plan_size: PlanSize | None = None,
) -> int | None:
    """The next scale below the present one that is worth measuring.

    Ends and powers of two come first. Once three scales are known, and a model meets them, one of these is worth
    measuring only where the shapes through the known points disagree by more than `tolerance`, twice that where the
    plan would be the same with each of them. While no model meets the points (a knee, a shape that nobody thought of),
    all are. A scale between two landmarks is added where the shapes disagree most, by twice as much again. The smallest
    scale is measured last, whatever the shapes say.

    Args:
        scales: Permitted scales in nodes, ascending.
        present: The present scale.
        known: Points known so far, nodes ascending, family and declared ones included.
        visited: Scales measured in this profile.
        tolerance: Relative error that the curve may have.
        plan_size: What a plan would give for a curve; None: plans do not matter.

    Returns:
        None where nothing more is worth measuring.
    """
    below = [scale for scale in scales if scale < present and scale not in visited]
    sure = {knot.nodes for knot in known if knot.error <= tolerance}
    marks = [scale for scale in landmarks(scales) if scale in below and scale not in sure]
    if len(known) < FEWEST_POINTS:
        return marks[-1] if marks else None
    fits = all_fits(known)
    strange = min(fit.misfit for fit in fits if fit.name != MONOTONE) > _UNDECIDED * tolerance
    matters = strange or (plan_size is not None and _plans_differ(fits, plan_size))
    allowed = tolerance if matters else _UNDECIDED * tolerance
    wanted = [scale for scale in marks if strange or disagreement(fits, scale) > allowed]
    following = wanted[-1] if wanted else 0
    gap = [scale for scale in below if scale > following and scale not in sure]
    worst = max(gap, key=lambda scale: (disagreement(fits, scale), scale), default=None)
    if worst is not None and disagreement(fits, worst) > 2 * allowed:
        return worst
    # The smallest scale is the cheapest one, and nothing below it bounds what the shapes say of it.
    return following or (scales[0] if scales[0] in marks else None)


def disagreement(fits: Sequence[Fit], nodes: int) -> float:
    """How far apart shapes lie at a scale: log of the largest over the smallest rate."""
    logs = [math.log(fit.rate(nodes)) for fit in fits]
    return max(logs) - min(logs) if logs else math.inf


def next_listed(wanted: Collection[int], present: int, visited: Collection[int]) -> int | None:
    """The largest scale below the present one of a list that was made beforehand."""
    return max((scale for scale in wanted if scale < present and scale not in visited), default=None)


def fleet_scales(single_rates: Sequence[float], base: int, scales: Sequence[int]) -> list[int]:
    """FLEET's three-step profile (appendix B.3): which scales of a job are measured.

    Step 1 has the rate of each job on one node; step 2 asks how many nodes bring the slowest of them up to the fastest
    one's single-node rate, `M_a = ⌈max/min⌉`; step 3 measures up to `M_t = max(M_a, M_b)`. Beyond, Eq. 1 extrapolates.

    Args:
        single_rates: Samples/s on one node of each known job; may be empty.
        base: M_b in nodes: FLEET takes the GPUs of two nodes.
        scales: Permitted scales in nodes, ascending.
    """
    rates = [rate for rate in single_rates if rate > 0]
    largest = max(base, math.ceil(max(rates) / min(rates)) if rates else 0)
    return [scale for scale in scales if scale <= largest] or list(scales[:1])


def _plans_differ(fits: Sequence[Fit], plan_size: PlanSize) -> bool:
    return len({plan_size(fit.rate) for fit in fits}) > 1
