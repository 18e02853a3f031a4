"""T_fwd: how far ahead a decision looks (BFTrainer, section 3.2), fixed or from the nodes' expected stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

SURVIVAL_SHARE = 0.25
"""Nodes leave one by one and a job is disturbed by the first of its own: a quarter of the mean stay is about as good as
the best constant on the Summit log (docs/horizon.md)."""


class ForwardPolicy(StrEnum):
    """Where T_fwd comes from."""

    CONSTANT = "constant"
    SURVIVAL = "survival"


@dataclass(frozen=True)
class Forward:
    """How to come by T_fwd; all times in seconds.

    Attributes:
        seconds: T_fwd, and what holds under `survival` where no stay is known.
        policy: Where it comes from.
        share: With `survival`, what part of the nodes' mean expected stay it is.
        least: With `survival`, at least so much.
        most: With `survival`, at most so much.
    """

    seconds: float
    policy: ForwardPolicy = ForwardPolicy.CONSTANT
    share: float = SURVIVAL_SHARE
    least: float = 10.0
    most: float = 3600.0

    def of(self, stays: Iterable[float]) -> float:
        """T_fwd for nodes with these expected stays (0: not known); they are looked at only with `survival`."""
        if self.policy is ForwardPolicy.CONSTANT:
            return self.seconds
        known = [stay for stay in stays if stay > 0]
        if not known:
            return self.seconds
        return min(self.most, max(self.least, self.share * sum(known) / len(known)))
