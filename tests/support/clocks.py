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
