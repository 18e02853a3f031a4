"""Pauses between attempts that fail: each is twice as long as the one before, up to a longest one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Backoff:
    """How long to wait before the next attempt.

    Attributes:
        first_seconds: Pause after the first failure, in seconds.
        max_seconds: Longest pause, in seconds.
    """

    first_seconds: float
    max_seconds: float
    _newest: float | None = field(default=None, init=False, repr=False)

    @property
    def active(self) -> bool:
        """Whether an attempt has failed since the last success."""
        return self._newest is not None

    @property
    def seconds(self) -> float:
        """The newest pause in seconds; 0 while no attempt has failed."""
        return self._newest or 0.0

    def fail(self) -> float:
        """An attempt has failed; returns the pause that follows, in seconds."""
        pause = self.first_seconds if self._newest is None else 2 * self._newest
        self._newest = min(pause, self.max_seconds)
        return self._newest

    def succeed(self) -> None:
        """An attempt has succeeded: the next pause is the first one again."""
        self._newest = None
