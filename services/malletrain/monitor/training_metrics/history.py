"""The history of one metric of a job: a bounded number of points, however many values come. Pure.

Each point stands for as many values as the others, the *stride*, but for the first and the last. When there are too
many points, neighbours are joined two by two, and the stride doubles. So every value is part of a point, and the least
and the greatest of all remain known; the first and the last one remain as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

MAX_POINTS = 512
"""Most points of a metric."""
MAX_NAMES = 32
"""Most metrics of a job."""
MAX_NAME_BYTES = 64
"""Longest name of a metric, in UTF-8."""


class LoggedValue(NamedTuple):
    """One value that a script has logged.

    Attributes:
        name: Name of the metric.
        number: Number of the value among all of its reporter, from 1.
        unix_seconds: When it was logged, in seconds since the epoch.
        step: The script's own step, or the samples that the job had done; None: not known yet.
        value: The value.
    """

    name: str
    number: int
    unix_seconds: float
    step: int | None
    value: float


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One or several values that follow each other.

    Attributes:
        first: How many values of the metric came before.
        values: How many these are.
        step: The step of the last of them.
        unix_seconds: When the last of them was logged, in seconds since the epoch.
        value: The last of them.
        least: The least of them.
        most: The greatest of them.
    """

    first: int
    values: int
    step: int
    unix_seconds: float
    value: float
    least: float
    most: float

    def joined(self, later: HistoryPoint) -> HistoryPoint:
        """This point and the next one as one."""
        return replace(
            later,
            first=self.first,
            values=self.values + later.values,
            least=min(self.least, later.least),
            most=max(self.most, later.most),
        )


@dataclass(frozen=True, slots=True)
class HistoryEnd:
    """The end of a history: all that is needed to add a value.

    Attributes:
        stride: How many values a point gets, other than the first one.
        closed: Points before the last one.
        last: The last point, which later values may join.
    """

    stride: int
    closed: int
    last: HistoryPoint

    @property
    def is_full(self) -> bool:
        """Whether the history has to be thinned before the next value."""
        return self.closed + 1 >= MAX_POINTS

    def after(self, value: LoggedValue) -> tuple[HistoryEnd, HistoryPoint | None]:
        """The end after another value, and the point that gets no more values by that; None: there is none."""
        last = self.last
        point = _point_of(value, last.first + last.values)
        if last.values < self.stride and self.closed:
            return replace(self, last=last.joined(point)), None
        return HistoryEnd(self.stride, self.closed + 1, point), last


def begun(value: LoggedValue) -> HistoryEnd:
    """The history of a metric with its first value."""
    return HistoryEnd(1, 0, _point_of(value, 0))


def thinned(closed: Sequence[HistoryPoint], end: HistoryEnd) -> tuple[list[HistoryPoint], HistoryEnd]:
    """A history with about half as many points: those before the last one, and its end.

    Args:
        closed: The points before the last one, oldest first, as many as `end.closed`.
        end: The end.
    """
    if not closed:
        return [], end
    kept, last = joined_pairs(closed), end.last
    if len(closed) % 2 == 0 and len(closed) > 1:
        # The last one before the end has no neighbour: it goes on with the end.
        last = kept.pop().joined(last)
    return kept, HistoryEnd(2 * end.stride, len(kept), last)


def joined_pairs(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """The first point as it is, then neighbours joined two by two; an odd one at the end remains."""
    rest = points[1:]
    pairs = [earlier.joined(later) for earlier, later in zip(rest[::2], rest[1::2], strict=False)]
    return [*points[:1], *pairs, *(rest[-1:] if len(rest) % 2 else ())]


def at_most(points: Sequence[HistoryPoint], limit: int) -> list[HistoryPoint]:
    """The same history in fewer points.

    Args:
        points: All points, oldest first.
        limit: Most points, at least 2.
    """
    shown = list(points)
    while len(shown) > limit:
        shown = joined_pairs(shown)
    return shown


def _point_of(value: LoggedValue, first: int) -> HistoryPoint:
    step = 0 if value.step is None else value.step
    return HistoryPoint(first, 1, step, value.unix_seconds, value.value, value.value, value.value)
