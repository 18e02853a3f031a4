"""What happened during a run: idle nodes and jobs over time, and node-seconds computed from them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeChange:
    """A change of the set of idle nodes.

    Attributes:
        time: Seconds since the epoch.
        joined: Nodes that became idle.
        left: Nodes that are not idle any more.
    """

    time: float
    joined: frozenset[str]
    left: frozenset[str]


@dataclass(frozen=True)
class JobChange:
    """A change of a job.

    Attributes:
        time: Seconds since the epoch.
        job_id: The job.
        state: Its state from then on.
        nodes: The nodes that it trains on from then on.
        wanted: The nodes that the newest plan wants for it.
        held: The nodes that its launcher was told to use, or that its workers are on.
        scales: Permitted scales in nodes.
    """

    time: float
    job_id: str
    state: str
    nodes: frozenset[str]
    wanted: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    scales: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeInterval:
    """A period of one node.

    Attributes:
        node: The node.
        start: Beginning in seconds since the epoch.
        end: End in seconds since the epoch.
        label: "idle", or the identifier of the job that trained.
    """

    node: str
    start: float
    end: float
    label: str


@dataclass
class RunHistory:
    """All changes so far; times ascend within each list.

    Attributes:
        nodes: Changes of the idle nodes.
        jobs: Changes of the jobs.
        plans: When plans were applied, in seconds since the epoch.
    """

    nodes: list[NodeChange] = field(default_factory=list)
    jobs: list[JobChange] = field(default_factory=list)
    plans: list[float] = field(default_factory=list)


def idle_intervals(changes: Iterable[NodeChange], end: float) -> list[NodeInterval]:
    """Periods in which each node was idle. Those that have not ended are cut at `end`."""
    since: dict[str, float] = {}
    found = []
    for change in changes:
        for node in change.left & since.keys():
            found.append(NodeInterval(node, since.pop(node), change.time, "idle"))
        for node in change.joined:
            since.setdefault(node, change.time)
    return found + [NodeInterval(node, start, end, "idle") for node, start in since.items()]


def training_intervals(changes: Iterable[JobChange], end: float) -> list[NodeInterval]:
    """Periods in which a job trained on each node. Those that have not ended are cut at `end`."""
    since: dict[tuple[str, str], float] = {}
    found = []
    for change in changes:
        for job_id, node in list(since):
            if job_id == change.job_id and node not in change.nodes:
                found.append(NodeInterval(node, since.pop((job_id, node)), change.time, job_id))
        for node in change.nodes:
            since.setdefault((change.job_id, node), change.time)
    return found + [NodeInterval(node, start, end, job_id) for (job_id, node), start in since.items()]


def node_seconds(intervals: Iterable[NodeInterval]) -> float:
    """Total length of periods in node-seconds."""
    return sum(interval.end - interval.start for interval in intervals)
