"""Points of a scaling curve as they are declared or measured, each with what it is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LEAST_RATE = 1e-9
"""Samples per second below which a job does not run at all; ratios of such rates mean nothing."""

_SUREST = 0.005
"""No error is believed to be smaller than this: clocks and neighbours see to that."""


@dataclass(frozen=True, slots=True)
class Knot:
    """A declared (`steps` 0) or measured point.

    Attributes:
        nodes: Scale in nodes.
        rate: Samples per second.
        steps: Steps that it rests on.
        error: Half-width of the 95 % interval relative to the rate; 0 where nothing is said of it.
        unix_seconds: When it was last measured, in seconds since the epoch; 0 where it was not.
        shared: Measured on another job of the family.
    """

    nodes: int
    rate: float
    steps: int = 0
    error: float = 0.0
    unix_seconds: float = 0.0
    shared: bool = False

    @property
    def weight(self) -> float:
        """What it weighs against others: the inverse square of its error; its steps where no error is known."""
        return max(self.error, _SUREST) ** -2 if self.error > 0 else float(max(1, self.steps))

    def doubted(self, error: float) -> Knot:
        """The same with a further, independent relative error."""
        return replace(self, error=math.hypot(self.error, error)) if error > 0 else self
