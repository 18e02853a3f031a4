"""Expected stays of nodes, from what the Scavenger has told of them so far. Pure; `wire` reads protobufs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from malletrain.allocator.problem.planner import PlannableNode
from malletrain.model.survival_curve import SurvivalCurve

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """An idle node with the times from which its expected stay follows.

    Attributes:
        since: When its present fragment began, in seconds since the epoch.
        until: When its idleness ends at the latest, in seconds since the epoch; None where that is not known.
        gpus: How many GPUs it has.
    """

    since: float
    until: float | None
    pool: str
    gpus: int


@dataclass(frozen=True)
class StayReport:
    """The Scavenger's report of stays: only what has changed since its report before.

    Attributes:
        token: What the next request shows to get changes only.
        time: The Scavenger's time, in seconds since the epoch.
        horizon_seconds: How far stays look ahead.
        same_curve: Whether the curve is still that of the report before.
        curve: The curve; None with `same_curve`, and where there is none yet.
        complete: Whether `nodes` are all.
        nodes: Nodes by name.
        slow: Names of nodes that count as slow, idle or not: all of them, each time.
    """

    token: str
    time: float
    horizon_seconds: float
    same_curve: bool
    curve: SurvivalCurve | None
    complete: bool
    nodes: dict[str, NodeTimes]
    slow: frozenset[str] = frozenset()


@dataclass
class NodeStays:
    """The newest curve, and the times of nodes.

    Attributes:
        token: What the next request shows; empty before the first report.
    """

    token: str = ""
    _curve: SurvivalCurve | None = None
    _horizon: float = 0.0
    _ahead: float = 0.0
    _nodes: dict[str, NodeTimes] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)
    _slow: frozenset[str] = frozenset()
    _changed: frozenset[str] = frozenset()

    def take_report(self, report: StayReport, now: float) -> None:
        """Take over a report that has come at `now`, in seconds since the epoch by our own clock."""
        self.token = report.token
        self._horizon = report.horizon_seconds
        self._ahead = report.time - now
        # Joins do not say which nodes are slow, and may come after the report that they are part of.
        self._changed = self._slow.union(report.slow, report.nodes)
        self._slow = report.slow
        if not report.same_curve:
            self._curve = report.curve
        if report.complete:
            self._nodes, self._since, self._until = {}, {}, {}
        self._nodes.update(report.nodes)
        self._since.update((name, node.since) for name, node in report.nodes.items())
        self._until.update(
            (name, math.nan if node.until is None else node.until) for name, node in report.nodes.items()
        )

    def seconds(self, names: Iterable[str], now: float) -> dict[str, float]:
        """Expected stays at `now`, in seconds since the epoch, of those of these nodes that are known, in seconds."""
        known = list(filter(self._nodes.__contains__, names))  # without a loop: there may be ten thousand
        since = np.fromiter(map(self._since.__getitem__, known), dtype=np.float64, count=len(known))
        until = np.fromiter(map(self._until.__getitem__, known), dtype=np.float64, count=len(known))
        stays = expected_stays(self._curve, self._horizon, now + self._ahead, since, until)
        return dict(zip(known, stays, strict=True))

    def changed(self, stays: Mapping[str, float]) -> list[PlannableNode]:
        """Nodes of the newest report, and those that are or were slow, as they are now.

        Args:
            stays: As `seconds` has computed them; other nodes are left out.
        """
        known = ((name, self._nodes[name]) for name in self._changed if name in stays)
        return [
            PlannableNode(name, stays[name], times.pool, times.gpus, slow=name in self._slow) for name, times in known
        ]


def expected_stays(
    curve: SurvivalCurve | None,
    horizon: float,
    now: float,
    idle_since: Floats,
    ends: Floats,
) -> list[float]:
    """Expected further stays of nodes in seconds; 0 where nothing is known yet.

    The same as `StayEstimator.expected_stay` of the Scavenger, of many nodes at once.

    Args:
        curve: The curve; None: there is none yet.
        horizon: How far to look ahead in seconds; also the largest result.
        now: Seconds since the epoch.
        idle_since: Since when each node is idle, in seconds since the epoch, shape (nodes,).
        ends: When its idleness ends at the latest, in seconds since the epoch; NaN where that is not known. Shape
            (nodes,).
    """
    horizons = np.where(np.isnan(ends), horizon, np.minimum(ends - now, horizon))
    if curve is None:
        seconds = np.where(np.isnan(ends), 0.0, np.maximum(horizons, 0.0))
    else:
        ages = np.maximum(now - idle_since, 0.0)
        possible = np.maximum(horizons, np.finfo(np.float64).tiny)
        seconds = np.where(horizons > 0, _within(curve, ages, possible), 0.0)
    stays: list[float] = seconds.tolist()
    return stays


def _within(curve: SurvivalCurve, ages: Floats, horizons: Floats) -> Floats:
    """`curve.expected_stay` of many nodes at once.

    Args:
        ages: Idle ages in seconds, at least 0, shape (nodes,).
        horizons: How far to look ahead for each in seconds, above 0, shape (nodes,).

    Returns:
        Expected further stays in seconds, shape (nodes,).
    """
    times, survival = np.asarray(curve.times), np.asarray(curve.survival)
    integrals = np.asarray(curve.integrals)
    last = len(times) - 1

    def step(age: Floats) -> npt.NDArray[np.intp]:
        return np.searchsorted(times, age, side="right") - 1

    def integral(age: Floats) -> Floats:
        index = step(age)
        beyond = age - times[index]
        tail = -survival[-1] * np.expm1(-curve.tail_rate * beyond) / curve.tail_rate
        area: Floats = integrals[index] + np.where(index < last, survival[index] * beyond, tail)
        return area

    in_steps = np.minimum(ages, times[-1])
    stays = (integral(in_steps + horizons) - integral(in_steps)) / survival[step(in_steps)]
    beyond_steps = -np.expm1(-curve.tail_rate * horizons) / curve.tail_rate
    expected: Floats = np.where(ages >= times[-1], beyond_steps, stays)
    return expected
