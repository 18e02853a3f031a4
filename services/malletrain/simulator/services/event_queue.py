"""A simulated clock: actions at given times, run in their order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

Action = Callable[[], None]

EARLY, NORMAL = 0, 1
"""Order of actions at one instant."""


class EventQueue:
    """Actions and the times at which they happen.

    Attributes:
        now: The simulated time in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._entries: list[tuple[float, int, int, Action]] = []
        self._numbers = count()

    def at(self, time: float, action: Action, order: int = NORMAL) -> None:
        """Have an action run at a time, at the earliest now.

        Args:
            time: When, in seconds.
            action: What to do.
            order: Actions of one instant run in this order; those with the same one in the order of these calls.
        """
        heappush(self._entries, (max(time, self.now), order, next(self._numbers), action))

    @property
    def next_time(self) -> float:
        """When the next action is due, in seconds; infinity if there is none."""
        return self._entries[0][0] if self._entries else inf

    def run_instant(self) -> None:
        """Run all actions of the next time, those included that they add for the same time."""
        self.now = self.next_time
        while self.next_time == self.now:
            heappop(self._entries)[-1]()
