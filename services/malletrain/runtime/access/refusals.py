"""Refusals in the audit log: the first ones of a kind as lines of their own, the others as a count.

Whoever is refused costs nothing by calling again. A line for each would wash what was allowed out of the rotated logs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

INTERVAL_SECONDS = 60.0
_LINES = 8
"""Of each kind in an interval, before they are counted only."""
_KINDS = 200
"""Counted apart in an interval. Callers choose names and addresses; what is beyond counts as one kind."""


class RefusalKind(NamedTuple):
    """What refusals have in common.

    Attributes:
        who: The user, or the address of whom nobody knows.
        method: Full name of the method.
        reason: Why they were refused.
    """

    who: str
    method: str
    reason: str


OTHERS = RefusalKind("others", "", "too many kinds of refusals to count them apart")


class Refusals:
    """Counts refusals of an interval, which begins with its first one."""

    def __init__(self, report: Callable[[RefusalKind, int], None], seconds: float = INTERVAL_SECONDS) -> None:
        """Count from zero.

        Args:
            report: Called at the end of an interval with each kind that had more than a few, and how many of these
                had no line.
            seconds: How long an interval lasts.
        """
        self._report = report
        self._seconds = seconds
        self._counts: Counter[RefusalKind] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, kind: RefusalKind) -> bool:
        """Count a refusal; whether it gets a line of its own."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.end()
            self._loop = loop
            loop.call_later(self._seconds, self.end)
        counted = kind if kind in self._counts or len(self._counts) < _KINDS else OTHERS
        self._counts[counted] += 1
        return self._counts[counted] <= _LINES

    def end(self) -> None:
        """End the interval: report what had no line."""
        counts, self._counts, self._loop = self._counts, Counter(), None
        for kind, count in counts.items():
            if count > _LINES:
                self._report(kind, count - _LINES)
