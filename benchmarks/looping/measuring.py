"""From what happened and what was commanded to latencies. Pure."""

from __future__ import annotations

import statistics
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
class TimedEvent:
    """A leave or a join that a command has followed.

    Attributes:
        node: The node.
        begin: When it left or joined, in seconds since the epoch by the Scavenger's clock.
        end: When the command was noted, in seconds since the epoch.
    """

    node: str
    begin: float
    end: float


@dataclass(frozen=True)
class Latencies:
    """Seconds from events to the commands that follow from them.

    Attributes:
        releases: From a node's leave to the command that releases it or stops its job, where a job had it.
        commands: From a node's join to the first command of the plan that gives it to a job: that very command, or,
            where the job gets nodes of others with it, the command that takes these from them.
        growths: From a node's join to the command that gives it to a job: it may wait for nodes of another one.
        unreleased: Leaves of nodes that a job had and that no command has released.
        idle: Joins after which no job was given the node.
        released: The leaves of `releases`, one by one.
        commanded: The joins of `commands`, one by one.
    """

    releases: tuple[float, ...]
    commands: tuple[float, ...]
    growths: tuple[float, ...]
    unreleased: int
    idle: int
    released: tuple[TimedEvent, ...] = ()
    commanded: tuple[TimedEvent, ...] = ()


@dataclass(frozen=True)
class _Gain:
    """A command that gives nodes to a job, and all nodes that it gives."""

    time: float
    nodes: frozenset[str]


class _History:
    """What the commands did to each node, in the order of time."""

    def __init__(self, commands: Iterable[Command]) -> None:
        self.releases: dict[str, list[float]] = {}
        self.gains: dict[str, list[_Gain]] = {}
        self._losses: dict[str, list[float]] = {}
        holdings: dict[str, frozenset[str]] = {}
        for command in commands:
            before = holdings.get(command.job_id, frozenset())
            if command.kind == "release":
                self._note(self.releases, command.nodes, command.time)
                holdings[command.job_id] = before - command.nodes
            elif command.kind == "stop":
                # Of a job whose only node has left, the stop may come before the release, which nobody hears then.
                self._note(self.releases, before, command.time)
                self._note(self._losses, before, command.time)
                holdings[command.job_id] = frozenset()
            else:
                before = frozenset() if command.kind == "start" else before
                self._note(self._losses, before - command.nodes, command.time)
                gain = _Gain(command.time, command.nodes - before)
                for node in gain.nodes:
                    self.gains.setdefault(node, []).append(gain)
                holdings[command.job_id] = command.nodes

    def gain(self, node: str, since: float, until: float) -> _Gain | None:
        """The first command within a time that gives a node to a job."""
        return next((gain for gain in self.gains.get(node, []) if since <= gain.time < until), None)

    def began(self, gain: _Gain, since: float) -> float:
        """When the first command was given of the plan that a command belongs to, and that follows an event."""
        losses = (time for node in gain.nodes for time in self._losses.get(node, []) if since <= time < gain.time)
        return min(losses, default=gain.time)

    @staticmethod
    def _note(times: dict[str, list[float]], nodes: Iterable[str], time: float) -> None:
        for node in nodes:
            times.setdefault(node, []).append(time)


def latencies(events: Iterable[NodeEvent], commands: Iterable[Command]) -> Latencies:
    """Match events with the commands that name their nodes."""
    history, ordered = _History(commands), sorted(events, key=lambda event: event.time)
    releases: list[TimedEvent] = []
    begun: list[TimedEvent] = []
    growths: list[float] = []
    unreleased = idle = 0
    joined: dict[str, float] = {}
    for event, until in zip(ordered, _times_of_next(ordered), strict=True):
        if event.joined:
            joined[event.node] = event.time
            gain = history.gain(event.node, event.time, until)
            if gain is None:
                idle += 1
            else:
                growths.append(gain.time - event.time)
                begun.append(TimedEvent(event.node, event.time, history.began(gain, event.time)))
            continue
        times = history.releases.get(event.node, [])
        released = next((time for time in times if event.time <= time < until), None)
        if released is not None:
            releases.append(TimedEvent(event.node, event.time, released))
        elif history.gain(event.node, joined.get(event.node, 0.0), event.time) is not None:
            unreleased += 1
    return Latencies(
        tuple(event.end - event.begin for event in releases),
        tuple(event.end - event.begin for event in begun),
        tuple(growths),
        unreleased,
        idle,
        tuple(releases),
        tuple(begun),
    )


def _times_of_next(events: Sequence[NodeEvent]) -> list[float]:
    """For each event, the time of the next one of its node."""
    found: list[float] = []
    later: dict[str, float] = {}
    for event in reversed(events):
        found.append(later.get(event.node, float("inf")))
        later[event.node] = event.time
    return found[::-1]


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
