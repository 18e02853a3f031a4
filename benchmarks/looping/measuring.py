"""From what happened and what was commanded to latencies. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeEvent:
    """A node that left or joined, with the time by the Scavenger's clock in seconds since the epoch."""

    time: float
    node: str
    joined: bool


@dataclass(frozen=True)
class Command:
    """What a supervisor was told: `start`, `set`, `release` or `stop`, and when."""

    time: float
    kind: str
    job_id: str
    nodes: frozenset[str]

    @classmethod
    def of(cls, line: str) -> Command:
        """A line of the stand-ins' file."""
        seconds, kind, job_id, *nodes = line.split()
        return cls(float(seconds), kind, job_id, frozenset(nodes))


@dataclass(frozen=True)
class Latencies:
    """Seconds from events to the commands that follow from them.

    Attributes:
        releases: From a node's leave to the command that releases it, where a job had it.
        commands: From a node's join to the first command of the plan that follows.
        growths: From a node's join to the command that gives it to a job: it may wait for nodes of another one.
        unreleased: Leaves of nodes that a job had and that no command has released.
        idle: Joins after which no job was given the node.
    """

    releases: tuple[float, ...]
    commands: tuple[float, ...]
    growths: tuple[float, ...]
    unreleased: int
    idle: int


def latencies(events: Iterable[NodeEvent], commands: Sequence[Command]) -> Latencies:
    """Match events with the commands that name their nodes."""
    releases: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    holdings: dict[str, frozenset[str]] = {}
    for command in commands:
        if command.kind == "release":
            for node in command.nodes:
                releases.setdefault(node, []).append(command.time)
            holdings[command.job_id] = holdings.get(command.job_id, frozenset()) - command.nodes
        elif command.kind in ("start", "set"):
            before = frozenset() if command.kind == "start" else holdings.get(command.job_id, frozenset())
            for node in command.nodes - before:
                gains.setdefault(node, []).append(command.time)
            holdings[command.job_id] = command.nodes
    rescales = sorted(command.time for command in commands if command.kind in ("start", "set"))
    found: dict[str, list[float]] = {"releases": [], "growths": [], "commands": []}
    missed = {"releases": 0, "growths": 0}
    last: dict[str, NodeEvent] = {}
    ordered = sorted(events, key=lambda event: event.time)
    following: dict[int, float] = {}
    for event in ordered:
        if event.node in last:
            following[id(last[event.node])] = event.time
        last[event.node] = event
    for event in ordered:
        kind, times = ("growths", gains) if event.joined else ("releases", releases)
        until = following.get(id(event), float("inf"))
        first = next((time for time in times.get(event.node, []) if event.time <= time < until), None)
        if event.joined and (index := bisect_left(rescales, event.time)) < len(rescales):
            found["commands"].append(rescales[index] - event.time)
        if first is not None:
            found[kind].append(first - event.time)
        elif event.joined or _was_held(event, gains, ordered):
            missed[kind] += 1
    releases_found, commanded, given = (tuple(found[kind]) for kind in ("releases", "commands", "growths"))
    return Latencies(releases_found, commanded, given, missed["releases"], missed["growths"])


def _was_held(event: NodeEvent, gains: dict[str, list[float]], events: Sequence[NodeEvent]) -> bool:
    """Whether a job was given the node since it joined."""
    joins = [other.time for other in events if other.node == event.node and other.joined and other.time < event.time]
    since = max(joins, default=0.0)
    return any(since <= time < event.time for time in gains.get(event.node, []))


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Number, median, 99th percentile and largest, in milliseconds."""
    if not seconds:
        return {"count": 0}
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "median_ms": round(statistics.median(ordered) * 1000, 1),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 1),
        "most_ms": round(ordered[-1] * 1000, 1),
    }
