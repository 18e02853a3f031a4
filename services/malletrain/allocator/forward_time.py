"""The forward-looking time T_fwd (BFTrainer, section 3.2): constant, or from what has been observed. Pure.

docs/horizon.md derives `survival` and `expected`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

FORWARD_SECONDS = 120.0
"""T_fwd unless the operator says otherwise."""
SURVIVAL_SHARE = 0.25
"""T_fwd as a fraction of the mean expected stay: much less than 1, since the first node to leave interrupts its job.
A quarter is about as good as the best constant on the Summit log (docs/horizon.md)."""
_GAP_SHARE = 0.5
"""A change of scale concerns two jobs, or a job and the next one to take the node: the first of two changes ends it."""
_STALLS = 2.5
"""With `expected`, T_fwd is at least so many stalls of a growth: twice as long, or a start would not pay while new
workers boot, which counts as half of T_fwd at most."""
_ASSUMED_CHANGES = 10.0
"""With `expected`, so many changes with the gaps of `ForwardTime.seconds` are assumed before any is seen."""


class ForwardPolicy(StrEnum):
    """Where T_fwd comes from."""

    CONSTANT = "constant"
    SURVIVAL = "survival"
    EXPECTED = "expected"


@dataclass(frozen=True)
class ObservedChanges:
    """Changes of the scale of jobs.

    Attributes:
        job_seconds: Seconds that jobs had nodes, over all jobs.
        changes: Changes of scale in this time, those by nodes that left included.
    """

    job_seconds: float = 0.0
    changes: float = 0.0


NOTHING_OBSERVED = ObservedChanges()


@dataclass(frozen=True)
class ForwardTime:
    """How T_fwd is computed. All times are in seconds.

    Attributes:
        seconds: T_fwd with `constant`, and with the others as long as nothing is known.
        policy: Where T_fwd comes from.
        share: With `survival`, T_fwd as a fraction of the mean expected stay.
        least: The smallest T_fwd that is not constant.
        most: The largest T_fwd that is not constant.
    """

    seconds: float
    policy: ForwardPolicy = ForwardPolicy.CONSTANT
    share: float = SURVIVAL_SHARE
    least: float = 10.0
    most: float = 3600.0

    def of(
        self,
        stays: Iterable[float],
        observed: ObservedChanges = NOTHING_OBSERVED,
        growth_stalls: Iterable[float] = (),
    ) -> float:
        """T_fwd in seconds.

        Args:
            stays: With `survival`, expected stays of the nodes in seconds; 0 stands for one that is not known.
            observed: With `expected`, how often jobs have changed.
            growth_stalls: With `expected`, R_up of each job in seconds.
        """
        if self.policy is ForwardPolicy.CONSTANT:
            return self.seconds
        if self.policy is ForwardPolicy.SURVIVAL:
            known = [stay for stay in stays if stay > 0]
            return self._within(self.share * sum(known) / len(known)) if known else self.seconds
        assumed = _ASSUMED_CHANGES * self.seconds / _GAP_SHARE
        gap = (observed.job_seconds + assumed) / (observed.changes + _ASSUMED_CHANGES)
        return self._within(max(_GAP_SHARE * gap, _STALLS * max(growth_stalls, default=0.0)))

    def _within(self, seconds: float) -> float:
        return min(self.most, max(self.least, seconds))
