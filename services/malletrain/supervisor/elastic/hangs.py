"""Which workers of an elastic group hang. Pure."""

from __future__ import annotations

import signal
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Self

from malletrain.common.job_limits import LEAVE_GRACE_SECONDS, JobLimits
from malletrain.supervisor.elastic.membership import Membership
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.watchdog import Watchdog
from malletrain.supervisor.workers.worker_exit import WorkerExit

_STOPPED_SECONDS = 5.0
_DEAF_SECONDS = 3.0
"""Gloo can miss the end of a connection, and then waits for its time-out while the others have long come back."""
_BROKEN_SECONDS = 2.0
"""Members that still connect are not told when another has given up: Gloo waits for five time-outs, then aborts."""


@dataclass(frozen=True)
class ElasticHangs:
    """Which workers show signs of a hang, and since when. Times are monotonic seconds.

    Attributes:
        stopped: Workers that a signal such as SIGSTOP has stopped.
        lagging: Members that have not come back while others wait for them at the rendezvous and nobody is at work.
        deaf: The same after a loss.
        torn: Whether the present group has lost a member while it connected.
        broken_at: When another member has given up because of that.
    """

    stopped: Watchdog[Slot] = field(default_factory=lambda: Watchdog(_STOPPED_SECONDS))
    lagging: Watchdog[Slot] = field(default_factory=lambda: Watchdog(LEAVE_GRACE_SECONDS))
    deaf: Watchdog[Slot] = field(default_factory=lambda: Watchdog(_DEAF_SECONDS))
    torn: bool = False
    broken_at: float = float("inf")

    @classmethod
    def with_limits(cls, limits: JobLimits) -> Self:
        """The state of a new group, for a job with these limits."""
        return cls(lagging=Watchdog(limits.leave_grace))

    def formed(self) -> ElasticHangs:
        """The state once a new group begins to connect: what the group before has lost no longer counts."""
        return replace(self, torn=False, broken_at=float("inf"))

    def lost(self, ended: WorkerExit, membership: Membership, now: float) -> ElasticHangs:
        """A member has ended.

        If a group loses a member while it connects, another member may give up because of that. The rest then waits
        for it in vain.

        Args:
            ended: The member.
            membership: The membership before its end.
            now: The time.
        """
        gave_up = self.torn and ended.code == -signal.SIGABRT and not ended.killed
        broken_at = min(self.broken_at, now) if gave_up else self.broken_at
        return replace(self, torn=self.torn or bool(membership.joining), broken_at=broken_at)

    def after_look(self, stopped: Set[Slot], membership: Membership, now: float, *, idle: bool) -> ElasticHangs:
        """The state after a look at the workers.

        Args:
            stopped: Workers that a signal has stopped.
            membership: The present membership.
            now: The time.
            idle: Whether no process of the job does anything.
        """
        laggards = membership.laggards
        # If the group is closing, a member that has not come back may be saving.
        after_loss = bool(membership.dead) and not membership.closing
        return replace(
            self,
            stopped=self.stopped.after_look(stopped, now),
            lagging=self.lagging.after_look(laggards if idle else frozenset(), now),
            deaf=self.deaf.after_look(laggards if after_loss else frozenset(), now),
        )

    def hung(self, membership: Membership, now: float) -> frozenset[Slot]:
        """Workers that have hung for too long."""
        overdue = self.stopped.overdue(now) | self.lagging.overdue(now) | self.deaf.overdue(now)
        broken = now >= self.broken_at + _BROKEN_SECONDS
        return overdue | (membership.living - membership.ready) if broken else overdue
