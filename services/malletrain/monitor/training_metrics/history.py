"""The history of one metric of a job: a bounded number of points, however many values come. Pure.

Each point stands for as many values as the others, the *stride*, but for the first and the last. When there are too
many points, neighbours are joined two by two, and the stride doubles. So every value is part of a point, and the least
and the greatest of all remain known; the first and the last one remain as they were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from malletrain.monitor.machine.progress import NO_POSITION, ReportedBatch

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

    def join(self, later: HistoryPoint) -> HistoryPoint:
        """Merge this point and the next one."""
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
            return replace(self, last=last.join(point)), None
        return HistoryEnd(self.stride, self.closed + 1, point), last


def begin_history(value: LoggedValue) -> HistoryEnd:
    """The history of a metric with its first value."""
    return HistoryEnd(1, 0, _point_of(value, 0))


def thin_history(closed: Sequence[HistoryPoint], end: HistoryEnd) -> tuple[list[HistoryPoint], HistoryEnd]:
    """A history with about half as many points: those before the last one, and its end.

    Args:
        closed: The points before the last one, oldest first, as many as `end.closed`.
    """
    if not closed:
        return [], end
    joined, last = joined_pairs(closed), end.last
    if len(closed) % 2 == 0 and len(closed) > 1:
        # The last one before the end has no neighbour: it goes on with the end.
        last = joined.pop().join(last)
    return joined, HistoryEnd(2 * end.stride, len(joined), last)


def joined_pairs(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """The first point as it is, then neighbours joined two by two; an odd one at the end remains."""
    rest = points[1:]
    pairs = [earlier.join(later) for earlier, later in zip(rest[::2], rest[1::2], strict=False)]
    return [*points[:1], *pairs, *(rest[-1:] if len(rest) % 2 else ())]


def at_most(points: Sequence[HistoryPoint], limit: int) -> list[HistoryPoint]:
    """The history in fewer points.

    Args:
        points: All points, oldest first.
        limit: Most points, at least 2.
    """
    fewer = list(points)
    while len(fewer) > limit:
        fewer = joined_pairs(fewer)
    return fewer


def _point_of(value: LoggedValue, first: int) -> HistoryPoint:
    step = 0 if value.step is None else value.step
    return HistoryPoint(first, 1, step, value.unix_seconds, value.value, value.value, value.value)


_MAX_KNOWN = 2048
"""Batches whose ends a reporter's history of samples keeps: some seconds of the quickest loops."""


class SamplesByTime:
    """How many samples a job had done at each moment of the last while, as one of its reporters tells.

    Values come in other messages than the batches before them: a reporter sends values once a second at most.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._done = [0]

    def add(self, batches: Sequence[ReportedBatch], samples: int) -> None:
        """Take in batches.

        Args:
            batches: What the reporter has sent since the last call, oldest first.
            samples: Samples that the job has done, these batches included.
        """
        before, *after = _samples_after(batches, samples)
        times = [at for batch in batches for at in batch.records.unix_seconds]
        # The last moment before is known better now: other reporters may have told of batches since.
        self._done[-1] = before
        self._times += times
        self._done += after
        if (surplus := len(self._times) - _MAX_KNOWN) > 0:
            del self._times[:surplus], self._done[:surplus]

    def at(self, unix_seconds: float) -> int:
        """Samples done at a moment, in seconds since the epoch; before all that is known, those at its beginning."""
        return self._done[bisect_right(self._times, unix_seconds)]


def with_steps(values: Iterable[LoggedValue], known: SamplesByTime) -> tuple[LoggedValue, ...]:
    """The values, each with a step.

    Args:
        values: What a job's reporter has sent.
        known: How many samples the job had done when.
    """
    return tuple(
        value if value.step is not None else value._replace(step=known.at(value.unix_seconds)) for value in values
    )


def _samples_after(batches: Sequence[ReportedBatch], samples: int) -> list[int]:
    """The samples done before the first of these records, and after each: as it tells, otherwise counted back."""
    done = [samples]
    for batch in reversed(batches):
        columns = zip(reversed(batch.records.samples), reversed(batch.records.positions), strict=True)
        for count, position in columns:
            if position != NO_POSITION:
                done[-1] = position
            done.append(max(0, done[-1] - count))
    return done[::-1]
