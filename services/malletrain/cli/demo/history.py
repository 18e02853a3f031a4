"""What happened during a run: idle nodes and jobs over time, and the figures that follow. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeChange:
    """An event of the idle set: seconds since the epoch, who joined, who left."""

    time: float
    joined: frozenset[str]
    left: frozenset[str]


@dataclass(frozen=True)
class JobChange:
    """A job from `time` (seconds since the epoch) on: its state and the nodes that it trains on."""

    time: float
    job_id: str
    state: str
    nodes: frozenset[str]


@dataclass(frozen=True)
class Interval:
    """Something that a node did from `start` to `end`, in seconds since the epoch."""

    node: str
    start: float
    end: float
    label: str


@dataclass
class History:
    """A growing record; times ascend within each list."""

    nodes: list[NodeChange] = field(default_factory=list)
    jobs: list[JobChange] = field(default_factory=list)


def idle_intervals(changes: Iterable[NodeChange], end: float) -> list[Interval]:
    """When each node was offered."""
    since: dict[str, float] = {}
    found = []
    for change in changes:
        for node in change.left & since.keys():
            found.append(Interval(node, since.pop(node), change.time, "idle"))
        for node in change.joined:
            since.setdefault(node, change.time)
    return found + [Interval(node, start, end, "idle") for node, start in since.items()]


def training_intervals(changes: Iterable[JobChange], end: float) -> list[Interval]:
    """When each node was trained on, labelled by the job."""
    since: dict[tuple[str, str], float] = {}
    found = []
    for change in changes:
        for job_id, node in list(since):
            if job_id == change.job_id and node not in change.nodes:
                found.append(Interval(node, since.pop((job_id, node)), change.time, job_id))
        for node in change.nodes:
            since.setdefault((change.job_id, node), change.time)
    return found + [Interval(node, start, end, job_id) for (job_id, node), start in since.items()]


def node_seconds(intervals: Iterable[Interval]) -> float:
    """Total length in node-seconds."""
    return sum(interval.end - interval.start for interval in intervals)
