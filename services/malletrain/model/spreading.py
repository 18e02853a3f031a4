"""What a job loses where its nodes are in several groups: its measured throughput at equal numbers of nodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_ERROR = 0.25
"""Rates that are known less well, relative to themselves, are not compared."""

_MIN_ERROR = 0.005
"""No rate is taken to be known better: what else differs between two times is not seen within one of them."""


@dataclass(frozen=True)
class SpanRate:
    """Throughput of a job where its nodes were equally near each other.

    Attributes:
        nodes: Their number.
        shared_levels: In one group of how many levels they were, from the outermost; see `topology.shared_levels`.
        rate: In samples/s, above 0.
        relative_error: Half-width of the rate's 95 % confidence interval, relative to the rate.
    """

    nodes: int
    shared_levels: int
    rate: float
    relative_error: float


@dataclass(frozen=True)
class SpreadLoss:
    """How much slower a job is on nodes farther from each other.

    Attributes:
        shared_levels: In one group of how many levels all nodes are, where they are far from each other.
        near_levels: The same, where they are near; larger.
        loss: What is lost of the throughput on near nodes, relative to that; negative: it is faster.
        error: Half-width of the loss's 95 % confidence interval.
        nodes: Numbers of nodes at which both were measured, ascending.
    """

    shared_levels: int
    near_levels: int
    loss: float
    error: float
    nodes: tuple[int, ...]


def spread_losses(rates: Iterable[SpanRate]) -> tuple[SpreadLoss, ...]:
    """What spreading costs, by how far: each time compared with the nearest placements of as many nodes.

    The mean of the logarithms of the ratios, weighted by the inverse of their variances. Where the ratios at several
    numbers of nodes differ by more than their errors explain, the error is as much larger (Birge, Phys. Rev. 40, 207,
    1932).

    Args:
        rates: At most one of each number of nodes and of shared levels.

    Returns:
        By `shared_levels` ascending; those that can't be compared are left out.
    """
    known = {(one.nodes, one.shared_levels): one for one in rates if one.relative_error <= MAX_ERROR}
    levels = sorted({level for _, level in known})
    losses = (_nearest(known, far, [level for level in levels if level > far]) for far in levels)
    return tuple(loss for loss in losses if loss is not None)


def _nearest(known: dict[tuple[int, int], SpanRate], far: int, nearer: Sequence[int]) -> SpreadLoss | None:
    for near in reversed(nearer):
        numbers = sorted(nodes for nodes, level in known if level == far and (nodes, near) in known)
        if numbers:
            loss, error = _compare_pairs([(known[number, far], known[number, near]) for number in numbers])
            return SpreadLoss(far, near, loss, error, tuple(numbers))
    return None


def _compare_pairs(pairs: Sequence[tuple[SpanRate, SpanRate]]) -> tuple[float, float]:
    logs = [math.log(far.rate / near.rate) for far, near in pairs]
    weights = [1 / (_error(far) ** 2 + _error(near) ** 2) for far, near in pairs]
    total = math.fsum(weights)
    mean = math.fsum(weight * value for weight, value in zip(weights, logs, strict=True)) / total
    error = 1 / math.sqrt(total)
    if len(pairs) > 1:
        # Errors are half-widths of 95 % intervals, about two standard deviations.
        squares = math.fsum(4 * weight * (value - mean) ** 2 for weight, value in zip(weights, logs, strict=True))
        error *= math.sqrt(max(1.0, squares / (len(pairs) - 1)))
    ratio = math.exp(mean)
    return 1 - ratio, ratio * error


def _error(rate: SpanRate) -> float:
    return max(rate.relative_error, _MIN_ERROR)


def loss_in_words(loss: SpreadLoss) -> str:
    """A loss, for people."""
    *others, last = map(str, loss.nodes)
    numbers = f"{', '.join(others)} and {last}" if others else last
    how = "slower" if loss.loss >= 0 else "faster"
    return (
        f"in several groups of level {loss.shared_levels + 1} {100 * abs(loss.loss):.1f} % {how} "
        f"(±{100 * loss.error:.1f} %) than in one group of level {loss.near_levels}, at {numbers} nodes"
    )
