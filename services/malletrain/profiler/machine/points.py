"""Points of a scaling curve: where they come from, how sure they are, and how that changes with time.

Monitor merges new steps into the point of the scale that they were measured at. Points at other scales cannot follow.
When a scale that is measured again turns out 20 % slower (another data set, a busier file system), older points at
other scales become less certain by the same 20 %, until they are measured again. `PointHistory` keeps track of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from malletrain.model.scaling import MIN_RATE, ScalingPoint

_MIN_ERROR = 0.005
"""Relative error below which no interval is trusted: clocks and other jobs on the machine disturb every measurement."""

_MAX_DRIFT = 0.2
"""Relative error that age alone adds to a point at most."""


class CurveSource(Enum):
    """The origin of a figure of a curve."""

    PRIOR = 1
    DECLARED = 2
    MEASURED = 3
    EXTRAPOLATED = 4
    FAMILY = 5
    CHECKPOINT = 6


@dataclass(frozen=True, slots=True)
class CurvePoint(ScalingPoint):
    """A point of a scaling curve with its origin and its precision.

    Attributes:
        steps: Number of steps that the rate was measured over; 0 where it was not measured.
        relative_error: Half-width of the 95 % interval, relative to the rate; 0 where it is not known.
        unix_seconds: When it was last measured, in seconds since the epoch; 0 where it was not measured.
        source: Where the rate comes from.
    """

    steps: int = 0
    relative_error: float = 0.0
    unix_seconds: float = 0.0
    source: CurveSource = CurveSource.MEASURED

    @property
    def weight(self) -> float:
        """Weight in means and fits: the inverse square of the error, or the number of steps where no error is known."""
        if self.relative_error > 0:
            return max(self.relative_error, _MIN_ERROR) ** -2
        return float(max(1, self.steps))

    def with_added_error(self, relative_error: float) -> CurvePoint:
        """The point with a further, independent relative error."""
        if relative_error <= 0:
            return self
        return replace(self, relative_error=math.hypot(self.relative_error, relative_error))


@dataclass(frozen=True)
class PointHistory:
    """How the measured points of one job have changed. All fields are by scale in nodes.

    Attributes:
        rates: Rate in samples/s that new points of the scale are compared with.
        errors: Relative error of that rate.
        doubts: Relative error that newer points at other scales have added.
        times: When the scale was last measured, in seconds since the epoch.
    """

    rates: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[int, float] = field(default_factory=dict)
    doubts: Mapping[int, float] = field(default_factory=dict)
    times: Mapping[int, float] = field(default_factory=dict)

    def after(self, points: Sequence[CurvePoint], contradiction: float) -> PointHistory:
        """The history after new measurements.

        Args:
            points: All measured points of the job, each scale once.
            contradiction: Relative change of a rate from which on it counts as a change of the job. The change must
                also be more than twice the errors of both rates together.
        """
        rates, errors, doubts, times = map(dict, (self.rates, self.errors, self.doubts, self.times))
        changes: list[tuple[float, float]] = []
        for point in points:
            if point.rate < MIN_RATE:
                continue
            if point.unix_seconds > times.get(point.nodes, -math.inf):
                times[point.nodes] = point.unix_seconds
                doubts.pop(point.nodes, None)
            before, error = rates.get(point.nodes), errors.get(point.nodes, math.inf)
            change = 0.0 if before is None else abs(math.log(point.rate / before))
            contradicted = change > max(contradiction, 2 * math.hypot(point.relative_error, error))
            if contradicted:
                changes.append((point.unix_seconds, change))
            if contradicted or before is None or point.relative_error < error:
                rates[point.nodes], errors[point.nodes] = point.rate, point.relative_error
        for when, change in changes:
            for nodes, measured in times.items():
                if measured < when:
                    doubts[nodes] = math.hypot(doubts.get(nodes, 0.0), change)
        return PointHistory(rates, errors, doubts, times)

    def aged(self, points: Sequence[CurvePoint], now: float, drift_per_hour: float) -> list[CurvePoint]:
        """Points with the errors that they have by now.

        Args:
            points: Points as Monitor measured them.
            now: Seconds since the epoch.
            drift_per_hour: Relative error that one hour adds. It grows with the square root of the age (a random walk:
                throughput drifts with file systems and other jobs) and never exceeds 20 %.
        """
        aged = []
        for point in points:
            age_hours = max(0.0, now - point.unix_seconds) / 3600.0 if point.unix_seconds > 0 else 0.0
            drift = min(_MAX_DRIFT, drift_per_hour * math.sqrt(age_hours))
            aged.append(point.with_added_error(math.hypot(self.doubts.get(point.nodes, 0.0), drift)))
        return aged


def trusted_points(points: Sequence[CurvePoint], max_error: float) -> list[CurvePoint]:
    """Points with a relative error of at most `max_error`; the best one alone where there is none."""
    trusted = [point for point in points if point.relative_error <= max_error]
    return trusted or sorted(points, key=lambda point: point.relative_error)[:1]
