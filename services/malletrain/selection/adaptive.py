"""A decision rule that adapts: BBSched's factor by what the workload asks for (Fan et al., HPDC 2019, end of §3.2.4).

The published rule gives up a share of the nodes for more than twice that share of the burst buffer, whatever is scarce.
Here the factor follows what waiting jobs ask for in all, in shares of the machine: where they ask for more burst buffer
than nodes, burst buffer keeps jobs waiting, and the factor falls; where they ask for more nodes, it rises. Pure.
"""

from __future__ import annotations

import math
from fractions import Fraction

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.selection.rule import default_trade_off

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
        """Begin without experience.

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
            kept = 0.5 ** (passed / self._half_life_s)
            self._seconds = self._seconds * kept + passed
            self._nodes = self._nodes * kept + passed * before_nodes
            self._burst_buffer = self._burst_buffer * kept + passed * before_gb
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
