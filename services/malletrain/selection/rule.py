"""BBSched's decision rule (Fan et al., HPDC 2019): which point of the Pareto set is taken, and how its factor adapts.

The first choice is the point of the set with the most nodes, of several the one at the front of the window. Another
point replaces it if what it gains in burst buffer (with SSDs: in burst buffer, requested SSD and less waste together)
is more than `trade_off` times what it loses in nodes, in shares of the machine; of several, the one with the largest
gain. Less waste counts as the paper words it, by the percentage by which it reduces what the first choice wastes.

The published rule gives up a share of the nodes for more than twice that share of the burst buffer, whatever is scarce.
Here the factor follows what waiting jobs ask for in all, in shares of the machine: where they ask for more burst buffer
than nodes, burst buffer keeps jobs waiting, and the factor falls; where they ask for more nodes, it rises. Pure.
"""

from __future__ import annotations

import math
from enum import StrEnum
from fractions import Fraction

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.arrays import Ints, check_magnitude, share_units
from malletrain.selection.methods import ObjectiveWeights
from malletrain.selection.problem import MachineResources

_MAX_DENOMINATOR = 1000


class WasteReading(StrEnum):
    """What "percentage of reduction in wasted local SSD" is a percentage of."""

    FIRST_CHOICE = "first-choice"
    """Of what the first choice wastes; where that is nothing, of the machine's SSD."""
    MACHINE = "machine"
    """Of the machine's SSD, as the other gains are."""


def default_trade_off(machine: MachineResources) -> Fraction:
    """The paper's factor: 2, and 4 with SSDs."""
    return Fraction(4 if machine.has_ssd else 2)


def check_trade_off(factor: Fraction, machine: MachineResources) -> None:
    """Refuse a factor that can't be used.

    Raises:
        InvalidInputError: it is negative, has more than three decimals, or is too large for the machine's totals.
    """
    if factor < 0 or factor.denominator > _MAX_DENOMINATOR:
        raise InvalidInputError("trade_off", "a number from 0 with at most three decimals", str(factor))
    check_magnitude(machine, max(10, factor.numerator + factor.denominator))


def gain_weights(machine: MachineResources) -> ObjectiveWeights:
    """The gain of a point, apart from that of the first choice."""
    _, burst_buffer, ssd = share_units(machine)
    return ObjectiveWeights((0, burst_buffer, ssd, ssd))


def score_weights(machine: MachineResources, factor: Fraction) -> ObjectiveWeights:
    """A score that is larger than the first choice's exactly for the points that may replace it."""
    nodes, burst_buffer, ssd = (factor.denominator * unit for unit in share_units(machine))
    return ObjectiveWeights((factor.numerator * nodes // factor.denominator, burst_buffer, ssd, ssd))


def choose(
    points: Ints,
    selections: Ints,
    machine: MachineResources,
    factor: Fraction,
    waste: WasteReading = WasteReading.FIRST_CHOICE,
) -> int:
    """Which row the rule takes.

    Args:
        points: f1 … f4 of each solution, at least one; shape (solutions, 4).
        selections: 0 or 1 for each job of the window; shape (solutions, jobs).
        factor: The rule's factor.
        waste: What a reduction of waste is a percentage of.
    """
    nodes, fronts = points[:, 0].tolist(), selections.tolist()
    first = max(range(len(nodes)), key=lambda row: (nodes[row], fronts[row]))
    if machine.has_ssd and waste is WasteReading.FIRST_CHOICE:
        gains = _gains_over(points.tolist(), points[first].tolist(), machine)
        losses = [Fraction(nodes[first] - count, machine.nodes) for count in nodes]
        better = [row for row in range(len(nodes)) if gains[row] > factor * losses[row]]
        return max(better, key=lambda row: (gains[row], nodes[row], fronts[row]), default=first)
    values = gain_weights(machine).of_points(points).tolist()
    scores = score_weights(machine, factor).of_points(points).tolist()
    better = [row for row in range(len(nodes)) if scores[row] > scores[first]]
    return max(better, key=lambda row: (values[row], nodes[row], fronts[row]), default=first)


def _gains_over(points: list[list[int]], first: list[int], machine: MachineResources) -> list[Fraction]:
    """What each solution gains over the first choice in burst buffer, SSD and less waste."""
    wasted = -first[3] or machine.ssd_gb
    return [
        Fraction(point[1] - first[1], machine.burst_buffer_gb or 1)
        + Fraction(point[2] - first[2], machine.ssd_gb)
        + Fraction(point[3] - first[3], wasted)
        for point in points
    ]


HALF_LIFE_S = 86400.0
"""After so many seconds a demand counts half: days differ, and one large job should not decide alone."""
RANGE = 4
"""The factor is between the published one divided by it and multiplied by it."""
_DECIMALS = 1000


class AdaptiveTradeOff:
    """The factor, learned while a workload runs.

    Attributes:
        factor: The newest one; at first the published one.
    """

    def __init__(self, machine: MachineResources, half_life_s: float = HALF_LIFE_S) -> None:
        """
        Raises:
            InvalidInputError: the machine has no burst buffer, or has SSDs, of which the rule has no single price.
        """
        if not machine.burst_buffer_gb or machine.has_ssd:
            raise InvalidInputError("trade_off", "a number: adaptive needs a burst buffer, and no SSDs", "adaptive")
        self._machine, self._half_life_s = machine, half_life_s
        self._published = default_trade_off(machine)
        self.factor = self._published
        self._seconds = self._nodes = self._burst_buffer = 0.0
        self._seen: tuple[float, float, float] | None = None

    def observe(self, now_s: float, nodes: int, burst_buffer_gb: int) -> Fraction:
        """What waiting jobs ask for in all from now on.

        Args:
            now_s: The time in seconds; never before the last one.
            nodes: Nodes.
            burst_buffer_gb: Burst buffer in GB.

        Returns:
            The factor for the selections of this moment.
        """
        if self._seen is not None:
            since_s, before_nodes, before_gb = self._seen
            passed = now_s - since_s
            decay = 0.5 ** (passed / self._half_life_s)
            self._seconds = self._seconds * decay + passed
            self._nodes = self._nodes * decay + passed * before_nodes
            self._burst_buffer = self._burst_buffer * decay + passed * before_gb
        self._seen = now_s, nodes / self._machine.nodes, burst_buffer_gb / self._machine.burst_buffer_gb
        if self._seconds > 0:
            self.factor = self._of(self._nodes, self._burst_buffer)
        return self.factor

    def _of(self, nodes: float, burst_buffer: float) -> Fraction:
        if nodes <= 0 and burst_buffer <= 0:
            return self._published
        ratio = nodes / burst_buffer if burst_buffer > 0 else math.inf
        bounded = min(max(ratio, 1.0 / RANGE), float(RANGE))
        return Fraction(round(float(self._published) * bounded * _DECIMALS), _DECIMALS)
