"""Expected stays of nodes, from what the Scavenger has told of them so far. Pure; `wire` reads protobufs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from malletrain.allocator.machine.expected_stays import expected_stays
from malletrain.allocator.problem.planner import PlannableNode
from malletrain.model.survival_curve import SurvivalCurve


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """An idle node.

    Attributes:
        since: When its present fragment began, in seconds since the epoch.
        until: When its idleness ends at the latest, in seconds since the epoch; None where that is not known.
        pool: Its pool.
        gpus: How many GPUs it has.
    """

    since: float
    until: float | None
    pool: str
    gpus: int


@dataclass(frozen=True)
class StayReport:
    """What the Scavenger has told: what has changed since its report before.

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
    _slow: frozenset[str] = frozenset()

    def take(self, report: StayReport, now: float) -> None:
        """Take over a report that has come at `now`, in seconds since the epoch by our own clock."""
        self.token = report.token
        self._horizon = report.horizon_seconds
        self._ahead = report.time - now
        self._slow = report.slow
        if not report.same_curve:
            self._curve = report.curve
        if report.complete:
            self._nodes = dict(report.nodes)
        else:
            self._nodes.update(report.nodes)

    def refreshed(self, nodes: Collection[PlannableNode], now: float) -> list[PlannableNode]:
        """Those of these nodes that are known, with their expected stays at `now`, in seconds since the epoch."""
        names = [node.name for node in nodes if node.name in self._nodes]
        known = list(map(self._nodes.__getitem__, names))
        since, until = [times.since for times in known], [times.until for times in known]
        stays = expected_stays(self._curve, self._horizon, now + self._ahead, since, until)
        pools, gpus = [times.pool for times in known], [times.gpus for times in known]
        refreshed = list(map(PlannableNode, names, stays, pools, gpus))
        return [node._replace(slow=node.name in self._slow) for node in refreshed] if self._slow else refreshed
