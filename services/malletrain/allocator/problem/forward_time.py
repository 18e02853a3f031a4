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
_GAP_SHARE = 0.35
"""With `expected`, T_fwd as a fraction of the mean time between changes of the job that holds a node. An arrangement
concerns two jobs, or a job and the next one to take the node, and ends with the first of two changes: about a half."""
_START_STALLS = 5 / 3
"""With `expected`, T_fwd is at least so many stalls of a growth: a start pays, and so does a growth by 150 %,
to 2.5 times the nodes."""
_ASSUMED_CHANGES = 10.0
"""With `expected`, so many changes are assumed before any is seen, with the gaps that lead to `ForwardTime.seconds`."""


MAX_BOOT = 0.5
"""As a fraction of T_fwd, the longest boot that counts: a job that boots slowly would otherwise never start."""


class ForwardPolicy(StrEnum):
    """How T_fwd is computed."""

    CONSTANT = "constant"
    SURVIVAL = "survival"
    EXPECTED = "expected"


@dataclass(frozen=True)
class ObservedChanges:
    """Changes of the scale of jobs, those by nodes that left included.

    Attributes:
        job_seconds: Seconds that jobs had nodes, over all jobs.
        node_seconds: Node-seconds that jobs held.
        changed_nodes: Nodes that jobs held before a change, over all changes.
    """

    job_seconds: float = 0.0
    node_seconds: float = 0.0
    changed_nodes: float = 0.0

    def gap(self, assumed_seconds: float) -> float:
        """Mean time between changes of the job that holds a node, in seconds.

        Args:
            assumed_seconds: The gap that is assumed while few changes have been seen.
        """
        if self.job_seconds <= 0:
            return assumed_seconds
        assumed = _ASSUMED_CHANGES * self.node_seconds / self.job_seconds
        return (self.node_seconds + assumed * assumed_seconds) / (self.changed_nodes + assumed)


NOTHING_OBSERVED = ObservedChanges()


def start_seconds(stall_seconds: float, boot_seconds: float = 0.0) -> float:
    """The shortest T_fwd with which a job may well start, in seconds.

    Args:
        stall_seconds: R_up of the job in seconds.
        boot_seconds: How long its new workers boot, in seconds.
    """
    return _START_STALLS * stall_seconds + boot_seconds


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
        starts: Iterable[float] = (),
    ) -> float:
        """T_fwd in seconds.

        Args:
            stays: With `survival`, expected stays of the nodes in seconds; 0 stands for one that is not known.
            observed: With `expected`, how often jobs have changed.
            starts: With `expected`, `start_seconds` of each job.
        """
        if self.policy is ForwardPolicy.CONSTANT:
            return self.seconds
        if self.policy is ForwardPolicy.SURVIVAL:
            known = [stay for stay in stays if stay > 0]
            return self._within(self.share * sum(known) / len(known)) if known else self.seconds
        gap = observed.gap(self.seconds / _GAP_SHARE)
        return self._within(max(_GAP_SHARE * gap, *starts, 0.0))

    def _within(self, seconds: float) -> float:
        return min(self.most, max(self.least, seconds))
