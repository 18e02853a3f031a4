"""Pauses between attempts that fail: each is twice as long as the one before, up to a longest one."""

from __future__ import annotations

from dataclasses import dataclass, field

_MAX_DOUBLINGS = 1023
"""The largest power of two among floats: more doublings would overflow."""


def pause_after(failures: int, first_seconds: float, max_seconds: float) -> float:
    """The pause after so many failures in a row, in seconds: `first_seconds` doubled from failure to failure.

    Args:
        failures: Failures in a row, however many; 0 or less: no pause.
        first_seconds: Pause after the first failure, in seconds, at least 0.
        max_seconds: Longest pause, in seconds.
    """
    if failures <= 0:
        return 0.0
    return float(min(first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), max_seconds))


@dataclass
class Backoff:
    """How long to wait before the next attempt.

    Attributes:
        first_seconds: Pause after the first failure, in seconds.
        max_seconds: Longest pause, in seconds.
    """

    first_seconds: float
    max_seconds: float
    _failures: int = field(default=0, init=False, repr=False)

    @property
    def active(self) -> bool:
        """Whether an attempt has failed since the last success."""
        return self._failures > 0

    @property
    def seconds(self) -> float:
        """The newest pause in seconds; 0 while no attempt has failed."""
        return pause_after(self._failures, self.first_seconds, self.max_seconds)

    def fail(self) -> float:
        """An attempt has failed; returns the pause that follows, in seconds."""
        self._failures += 1
        return self.seconds

    def succeed(self) -> None:
        """An attempt has succeeded: the next pause is the first one again."""
        self._failures = 0
