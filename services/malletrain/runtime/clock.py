"""Clocks, which are passed in: services use the system's, tests and simulations their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return time.monotonic()


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

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: seconds is negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds: expected at least 0, got {seconds}")
        self._now += seconds
