"""The forward-looking time T_fwd (BFTrainer, section 3.2): constant, or from the expected stays of the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

SURVIVAL_SHARE = 0.25
"""T_fwd as a fraction of the mean expected stay: much less than 1, since the first node to leave interrupts its job.
A quarter is about as good as the best constant on the Summit log (docs/horizon.md)."""


class ForwardPolicy(StrEnum):
    """Where T_fwd comes from."""

    CONSTANT = "constant"
    SURVIVAL = "survival"


@dataclass(frozen=True)
class ForwardTime:
    """How T_fwd is computed. All times are in seconds.

    Attributes:
        seconds: T_fwd with `constant`, and with `survival` as long as no expected stay is known.
        policy: Where T_fwd comes from.
        share: With `survival`, T_fwd as a fraction of the mean expected stay.
        least: With `survival`, the smallest T_fwd.
        most: With `survival`, the largest T_fwd.
    """

    seconds: float
    policy: ForwardPolicy = ForwardPolicy.CONSTANT
    share: float = SURVIVAL_SHARE
    least: float = 10.0
    most: float = 3600.0

    def of(self, stays: Iterable[float]) -> float:
        """T_fwd in seconds for nodes with these expected stays in seconds; 0 stands for one that is not known."""
        if self.policy is ForwardPolicy.CONSTANT:
            return self.seconds
        known = [stay for stay in stays if stay > 0]
        if not known:
            return self.seconds
        return min(self.most, max(self.least, self.share * sum(known) / len(known)))
