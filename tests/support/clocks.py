"""Clocks that tests set."""

from __future__ import annotations


class SetClock:
    """A wall clock that can be set, and a monotonic one that can't."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.offset = 1e9

    def time(self) -> float:
        return self.offset + self.passed

    def monotonic(self) -> float:
        return self.passed


class ManualClock:
    """A clock that only moves when told to."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """The same figure as `time`."""
        return self._now

    def set(self, now: float) -> None:
        """Be at another time in seconds, which may be earlier: somebody has set the clock."""
        self._now = now

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: seconds is negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds: expected at least 0, got {seconds}")
        self._now += seconds
