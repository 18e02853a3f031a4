"""Clocks, which are passed in, and steps of the wall clock, which are noticed by the monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Source of time, so that tests and replays can pass another."""

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


_MIN_SECONDS = 1.0
"""Smaller steps are left to add up."""


class ClockSteps:
    """Notices that the wall clock was set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.time() - clock.monotonic()

    def take_step(self) -> float:
        """Seconds by which the wall clock was set since the last call; 0 if it was not."""
        offset = self._clock.time() - self._clock.monotonic()
        step = offset - self._offset
        if abs(step) < _MIN_SECONDS:
            return 0.0
        self._offset = offset
        return step


class WatchedClock:
    """A clock that says when the wall clock was set, before anybody is told the new time.

    What is kept in seconds since the epoch can so be moved with the clock, and lasts as long as it should.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = ClockSteps(clock)
        self._followers: list[Callable[[float], None]] = []

    def follow(self, on_step: Callable[[float], None]) -> None:
        """From now on, call this with the seconds by which the clock was set; below 0 where it was set back."""
        self._followers.append(on_step)

    def time(self) -> float:
        """Seconds since the epoch."""
        if step := self._steps.take_step():
            for on_step in self._followers:
                on_step(step)
        return self._clock.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return self._clock.monotonic()
