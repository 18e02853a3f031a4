"""Expected stays of nodes, from what the Scavenger has told of them so far. Pure; `wire` reads protobufs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    _changed: frozenset[str] = frozenset()

    def take(self, report: StayReport, now: float) -> None:
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
            self._nodes = dict(report.nodes)
        else:
            self._nodes.update(report.nodes)

    def seconds(self, names: Iterable[str], now: float) -> dict[str, float]:
        """Expected stays at `now`, in seconds since the epoch, of those of these nodes that are known, in seconds."""
        known = [name for name in names if name in self._nodes]
        times = list(map(self._nodes.__getitem__, known))
        since, until = [entry.since for entry in times], [entry.until for entry in times]
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
