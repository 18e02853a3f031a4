"""BBSched's decision rule: which point of the Pareto set is taken (Fan et al., HPDC 2019, §3.2.4 and §5).

The first choice is the point of the set with the most nodes, of several the one at the front of the window. Another
point replaces it if what it gains in burst buffer (with SSDs: in burst buffer, requested SSD and less waste together)
is more than `trade_off` times what it loses in nodes, in shares of the machine; of several, the one with the largest
gain. Less waste counts as the paper words it, by the percentage by which it reduces what the first choice wastes.
"""

from __future__ import annotations

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
        machine: The machine.
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
