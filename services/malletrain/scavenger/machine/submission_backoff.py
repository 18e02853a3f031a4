"""Back-off after placeholders that fail: the delay doubles, then submission pauses. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from malletrain.common.backoff import pause_after

_CLOCK_TOLERANCE_SECONDS = 1.0


@dataclass(frozen=True)
class BackoffPolicy:
    """How long to wait after failures.

    Attributes:
        backoff_seconds: Delay after the first failure, in seconds. It doubles with each failure that follows.
        backoff_max_seconds: Longest delay in seconds; also the length of a pause.
        pause_after_failures: Failures in a row after which submission pauses.
    """

    backoff_seconds: float = 10.0
    backoff_max_seconds: float = 600.0
    pause_after_failures: int = 5

    def delay(self, failures: int) -> float:
        """Seconds until the next attempt after so many failures in a row (at least 1)."""
        if failures >= self.pause_after_failures:
            return self.backoff_max_seconds
        return pause_after(failures, self.backoff_seconds, self.backoff_max_seconds)


@dataclass(frozen=True)
class SubmissionBackoff:
    """How many attempts have failed in a row, and when the next one is due.

    An attempt is everything that was submitted between two failures: of 64 placeholders that were submitted together
    and all ended at once, the first counts and the others do not. While there are failures, placeholders are submitted
    one by one, each as a probe, and at most one per delay. An agent that reports from a probe resets everything.

    While all failures are on one node, the delay does not grow: that node may be the only one that is wrong, and it is
    avoided for longer and longer in any case (`PlaceholderState`).

    Times are seconds since the epoch.

    Attributes:
        failures: Failed attempts in a row; 0 where nothing is wrong.
        one_node: Whether they all were on one node.
        failed_at: When the last of them failed.
        retry_at: When the next probe may be submitted.
        node: Node of the last failure.
        error: What the scheduler said about it.
    """

    failures: int = 0
    one_node: bool = True
    failed_at: float = -math.inf
    retry_at: float = -math.inf
    node: str = ""
    error: str = ""

    @property
    def active(self) -> bool:
        """Whether the last attempt has failed."""
        return self.failures > 0

    def paused(self, policy: BackoffPolicy) -> bool:
        """Whether there were so many failures that submission pauses."""
        return not self.one_node and self.failures >= policy.pause_after_failures

    def failed(
        self, node: str, error: str, submitted_at: float, now: float, policy: BackoffPolicy
    ) -> SubmissionBackoff:
        """A placeholder has failed.

        Args:
            node: The node that it was for.
            error: What the scheduler said.
            submitted_at: When it was submitted.
            now: The present.
            policy: How long to wait.
        """
        if self.active and submitted_at < self.failed_at:
            return replace(self, one_node=self.one_node and node == self.node, node=node, error=error)
        one_node = not self.active or (self.one_node and node == self.node)
        backoff = SubmissionBackoff(self.failures + 1, one_node, now, now, node, error)
        return backoff.probed(now, policy)

    def succeeded(self, submitted_at: float) -> SubmissionBackoff:
        """An agent has reported from a placeholder. Only one that was submitted after the last failure proves anything.

        Args:
            submitted_at: When that placeholder was submitted, or first seen.
        """
        return self if submitted_at < self.failed_at else SubmissionBackoff()

    def probed(self, now: float, policy: BackoffPolicy) -> SubmissionBackoff:
        """A probe is submitted; the next one is due after the same delay, unless this one succeeds."""
        return replace(self, retry_at=now + self._delay(policy)) if self.active else self

    def is_due(self, now: float, policy: BackoffPolicy) -> bool:
        """Whether a placeholder may be submitted; also if a clock that was set back would make the delay longer."""
        if not self.active:
            return True
        return now >= self.retry_at or self.retry_at - now > self._delay(policy) + _CLOCK_TOLERANCE_SECONDS

    def moved(self, seconds: float) -> SubmissionBackoff:
        """The wall clock was set by so many seconds."""
        return replace(self, failed_at=self.failed_at + seconds, retry_at=self.retry_at + seconds)

    def _delay(self, policy: BackoffPolicy) -> float:
        return policy.delay(1 if self.one_node else self.failures)
