"""What a rescale costs: R_up and R_down of a job, and the stalls of single pairs of scales."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.machine.points import CurveSource


@dataclass(frozen=True, slots=True)
class RescaleCost:
    """The stall of a growth or of a shrink in seconds, and where the figure comes from."""

    seconds: float
    source: CurveSource


def rescale_cost(
    measured: float | None, declared: float | None, default: float, family: float | None = None
) -> RescaleCost:
    """The best known stall in seconds: measured, else of the family, else declared, else the default."""
    if measured is not None:
        return RescaleCost(measured, CurveSource.MEASURED)
    if family is not None:
        return RescaleCost(family, CurveSource.FAMILY)
    if declared is not None:
        return RescaleCost(declared, CurveSource.DECLARED)
    return RescaleCost(default, CurveSource.PRIOR)


def median_growth_stall(rescales: Sequence[RescaleStall]) -> float | None:
    """Median stall of the growths in seconds; None where there was none."""
    stalls = [entry.seconds for entry in rescales if entry.to_nodes > entry.from_nodes]
    return statistics.median(stalls) if stalls else None


def median_shrink_stall(rescales: Sequence[RescaleStall]) -> float | None:
    """Median stall of the shrinks in seconds; None where there was none."""
    stalls = [entry.seconds for entry in rescales if entry.to_nodes < entry.from_nodes]
    return statistics.median(stalls) if stalls else None


def stalls_by_pair(
    measured: Iterable[RescaleStall], up: RescaleCost, down: RescaleCost, weight: float
) -> tuple[RescaleStall, ...]:
    """Expected stall of each pair of scales: a weighted mean of what was measured there and of R_up or R_down.

    Args:
        measured: One entry per measured rescale.
        up: R_up, the stall of growths in general.
        down: R_down, the stall of shrinks in general.
        weight: Number of measurements that the general figure counts as, above 0.

    Returns:
        One entry per measured pair, ascending by scales.
    """
    by_pair: dict[tuple[int, int], list[float]] = {}
    for entry in measured:
        by_pair.setdefault((entry.from_nodes, entry.to_nodes), []).append(entry.seconds)
    found = []
    for (before, after), stalls in sorted(by_pair.items()):
        general = up if after > before else down
        expected = (sum(stalls) + weight * general.seconds) / (len(stalls) + weight)
        found.append(RescaleStall(before, after, expected))
    return tuple(found)
