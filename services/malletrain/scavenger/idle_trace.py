"""Idle fragments of some nodes over some time, and their recording from observations of a source. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import Observation


@dataclass(frozen=True, slots=True)
class Fragment:
    """One idle period of one node.

    Attributes:
        node: Name of the node.
        idle_from_s: First second in which the node is idle.
        idle_until_s: First second in which it no longer is; above idle_from_s.
    """

    node: str
    idle_from_s: float
    idle_until_s: float

    @property
    def length_s(self) -> float:
        """Length of the trace in seconds."""
        return self.idle_until_s - self.idle_from_s


@dataclass(frozen=True)
class Trace:
    """Idle fragments. Those of one node neither overlap nor touch.

    Attributes:
        fragments: By idle_from_s, then by the order of the nodes.
        nodes: All nodes, also those that are never idle. "The first nodes" of a trace are meant in this order.
        duration_s: Length of the trace, which begins at second 0. Fragments may go on beyond its end.
        earliest_s: No fragment begins before this second. Below 0 in an excerpt whose first nodes were idle before.
        origin: Second 0 in ISO 8601, with a zone or in the system's local time; None if it is not known.
        present_s: For nodes that were not part of the system from second 0 to the end: the first second in which they
            were, and the first in which they no longer were. They are not idle outside of it.
    """

    fragments: tuple[Fragment, ...]
    nodes: tuple[str, ...]
    duration_s: float
    earliest_s: float = 0.0
    origin: str | None = None
    present_s: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    @property
    def node_s(self) -> float:
        """Node-seconds of the trace: of each node as long as it was part of the system."""
        absent = sum(self.duration_s - (end - begin) for begin, end in self.present_s.values())
        return len(self.nodes) * self.duration_s - absent


def window(
    trace: Trace,
    start_s: float,
    duration_s: float,
    nodes: int | Sequence[str] | None = None,
    *,
    cut_end: bool = False,
) -> Trace:
    """An excerpt of a trace, whose second 0 is `start_s`.

    Args:
        trace: What to cut from.
        start_s: Second of the trace that becomes 0.
        duration_s: Length of the excerpt in seconds.
        nodes: Names of the nodes to keep, or how many of the first; None keeps all.
        cut_end: Whether fragments that go on beyond the excerpt are cut at its end. Fragments that began before it
            are never cut: their idle_from_s is below 0.

    Raises:
        InvalidInputError: duration_s is not above 0, or a node is not in the trace.
    """
    if not duration_s > 0:
        raise InvalidInputError("duration_s", "above 0", duration_s)
    window_nodes = _kept_nodes(trace, nodes)
    names = frozenset(window_nodes)
    end_s = start_s + duration_s
    fragments = tuple(
        Fragment(
            fragment.node,
            fragment.idle_from_s - start_s,
            (min(fragment.idle_until_s, end_s) if cut_end else fragment.idle_until_s) - start_s,
        )
        for fragment in trace.fragments
        if fragment.idle_until_s > start_s and fragment.idle_from_s < end_s and fragment.node in names
    )
    earliest_s = min(0.0, fragments[0].idle_from_s) if fragments else 0.0
    present_s = {
        name: (min(max(begin - start_s, 0.0), duration_s), min(max(end - start_s, 0.0), duration_s))
        for name, (begin, end) in trace.present_s.items()
        if name in names and (begin > start_s or end < end_s)
    }
    return Trace(fragments, window_nodes, duration_s, earliest_s, _later(trace.origin, start_s), present_s)


def _later(origin: str | None, seconds: float) -> str | None:
    if origin is None:
        return None
    return (datetime.fromisoformat(origin) + timedelta(seconds=seconds)).isoformat()


def _kept_nodes(trace: Trace, nodes: int | Sequence[str] | None) -> tuple[str, ...]:
    if nodes is None:
        return trace.nodes
    if isinstance(nodes, int):
        if not 0 < nodes <= len(trace.nodes):
            raise InvalidInputError("nodes", f"1 to {len(trace.nodes)}, as many as the trace knows", nodes)
        return trace.nodes[:nodes]
    unknown = sorted(set(nodes) - set(trace.nodes))
    if unknown:
        raise InvalidInputError("nodes", "names of nodes in the trace", unknown[0])
    wanted = frozenset(nodes)
    return tuple(name for name in trace.nodes if name in wanted)


_MAX_GAP_SECONDS = 60.0


class FragmentRecorder:
    """Collects the idle fragments that a source observes. Second 0 is the time of the first observation.

    A fragment ends with the first observation without it. If the source was silent for more than a minute before that,
    it ends with the last observation that had it, since it is not known what happened in between.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._last = 0.0
        self._open: dict[str, float] = {}
        self._ended: list[Fragment] = []
        self._names: set[str] = set()

    @property
    def idle(self) -> int:
        """Number of nodes that were idle in the last observation."""
        return len(self._open)

    @property
    def known(self) -> int:
        """Number of nodes in all observations."""
        return len(self._names)

    def observe(self, observation: Observation) -> None:
        """Take over an observation; stale ones are ignored."""
        if observation.stale:
            return
        now, idle = observation.time, observation.idle
        if self._begin is None:
            self._begin = self._last = now
        now = max(now, self._last)
        end = now if now - self._last <= _MAX_GAP_SECONDS else self._last
        for name, since in list(self._open.items()):
            if name not in idle or idle[name] > since:
                self._close(name, end)
        for name, since in idle.items():
            self._open.setdefault(name, since)
        self._names.update(idle, observation.known)
        self._last = now

    def trace(self) -> Trace | None:
        """What was recorded up to the last observation; None before any time has passed."""
        if self._begin is None or self._last <= self._begin:
            return None
        names = tuple(sorted(self._names))
        order = {name: index for index, name in enumerate(names)}
        fragments = sorted([*self._ended, *self._going_on()], key=lambda entry: (entry.idle_from_s, order[entry.node]))
        origin = datetime.fromtimestamp(self._begin, UTC).isoformat()
        return Trace(tuple(fragments), names, self._last - self._begin, 0.0, origin)

    def _going_on(self) -> Iterator[Fragment]:
        for name in self._open:
            if (fragment := self._fragment(name, self._last)) is not None:
                yield fragment

    def _close(self, name: str, end: float) -> None:
        if (fragment := self._fragment(name, end)) is not None:
            self._ended.append(fragment)
        del self._open[name]

    def _fragment(self, name: str, end: float) -> Fragment | None:
        begin = self._begin or 0.0
        # A node that was idle at the first observation counts from there on: since when it was idle is not known.
        since = max(0.0, round(self._open[name] - begin, 3))
        until = round(end - begin, 3)
        return Fragment(name, since, until) if until > since else None
