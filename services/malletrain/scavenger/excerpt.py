"""Finds a short excerpt of a trace with few nodes that join and leave often. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window

_WINDOWS_TRIED = 24
_BUSY_CANDIDATES = 40
_STAYING_CANDIDATES = 16
_STAYING_SHARE = 0.8
_CHANGES_PER_NODE = 3
_MAX_CHANGES_OF_A_NODE = 6
_FEW_NODES = 2


@dataclass(frozen=True)
class _NodeActivity:
    """When one node joins and leaves in a window.

    Attributes:
        node: Name.
        idle_first: Whether it is idle at the start.
        changes: Seconds from the start, with 1 for a join and -1 for a leave, in order.
        share: Part of the window in which it is idle.
    """

    node: str
    idle_first: bool
    changes: tuple[tuple[float, int], ...]
    share: float


def busy_excerpt(trace: Trace, duration_s: float, nodes: int) -> Trace:
    """The window and the nodes with the most joins and leaves in turn, and some nodes that stay.

    Windows that overlap by half are ranked by the number of changes of their most active nodes. In the best windows,
    nodes are added one by one, each time the node with the best score together with the others (`_score`). Names stay,
    and fragments at both ends keep their length. The same trace gives the same excerpt.

    Args:
        trace: What to cut from.
        duration_s: Length of the excerpt in seconds.
        nodes: Number of nodes in it.

    Raises:
        InvalidInputError: the trace is shorter or has fewer nodes.
    """
    if not 0 < duration_s <= trace.duration_s:
        raise InvalidInputError("duration_s", f"above 0 and at most the trace's {trace.duration_s:g}", duration_s)
    if not 0 < nodes <= len(trace.nodes):
        raise InvalidInputError("nodes", f"1 to {len(trace.nodes)}, as many as the trace knows", nodes)
    index = _Index(trace, duration_s)
    best: tuple[float, float, list[str]] | None = None
    for start_s in index.max_active_windows(nodes):
        chosen, score = _choose(index.activities(start_s), nodes, duration_s)
        if best is None or (score, -start_s) > (best[0], -best[1]):
            best = (score, start_s, chosen)
    if best is None:
        raise InvalidInputError("trace", "a window in which a node joins or leaves")
    _, start_s, names = best
    # If fewer nodes are ever idle in the window, nodes that never are fill up the number.
    names += [name for name in trace.nodes if name not in frozenset(names)][: nodes - len(names)]
    return window(trace, start_s, duration_s, names)


class _Index:
    """The trace as columns, for fast searches of many windows of one length."""

    def __init__(self, trace: Trace, duration_s: float) -> None:
        positions = {name: index for index, name in enumerate(trace.nodes)}
        self._names = trace.nodes
        self._duration = duration_s
        self._stride = duration_s / 2
        self._windows = int((trace.duration_s - duration_s) // self._stride) + 1
        self._node = np.array([positions[entry.node] for entry in trace.fragments], dtype=np.int64)
        self._from = np.array([entry.idle_from_s for entry in trace.fragments], dtype=np.float64)
        self._until = np.array([entry.idle_until_s for entry in trace.fragments], dtype=np.float64)

    def max_active_windows(self, nodes: int) -> list[float]:
        """Starts of the windows whose most active nodes change most often."""
        times = np.concatenate((self._from, self._until))
        who = np.concatenate((self._node, self._node))
        newest = np.floor(times / self._stride).astype(np.int64)
        # Each instant lies in two windows: the newest that has begun by then, and the one before.
        which = np.concatenate((newest, newest - 1))
        who = np.concatenate((who, who))
        inside = (which >= 0) & (which < self._windows)
        keys, counts = np.unique(which[inside] * len(self._names) + who[inside], return_counts=True)
        counts = np.minimum(counts, _MAX_CHANGES_OF_A_NODE)
        windows, first = np.unique(keys // len(self._names), return_index=True)
        totals = np.array([np.sort(part)[-nodes:].sum() for part in np.split(counts, first[1:])])
        ranked = np.lexsort((windows, -totals))[:_WINDOWS_TRIED]
        return [float(number) * self._stride for number in windows[ranked]]

    def activities(self, start_s: float) -> list[_NodeActivity]:
        """Nodes that are idle at any time in a window, in the order of the trace."""
        end_s = start_s + self._duration
        inside = (self._until > start_s) & (self._from < end_s)
        spans_of: dict[int, list[tuple[float, float]]] = {}
        for node, begin, end in zip(
            _list(self._node[inside]), _list(self._from[inside]), _list(self._until[inside]), strict=True
        ):
            spans_of.setdefault(int(node), []).append((begin - start_s, end - start_s))
        return [self._activity(self._names[node], spans) for node, spans in sorted(spans_of.items())]

    def _activity(self, name: str, spans: Iterable[tuple[float, float]]) -> _NodeActivity:
        changes: list[tuple[float, int]] = []
        idle = 0.0
        idle_first = False
        for begin, end in spans:
            idle += min(end, self._duration) - max(begin, 0.0)
            idle_first = idle_first or begin <= 0
            changes += [(begin, 1)] if begin > 0 else []
            changes += [(end, -1)] if end < self._duration else []
        return _NodeActivity(name, idle_first, tuple(changes), idle / self._duration)


def _list(column: NDArray[np.float64] | NDArray[np.int64]) -> list[float]:
    values: list[float] = column.tolist()
    return values


def _choose(activities: Sequence[_NodeActivity], nodes: int, duration_s: float) -> tuple[list[str], float]:
    """Names of at most `nodes` nodes with a good score together, and that score."""
    busy = sorted(activities, key=lambda activity: -len(activity.changes))[:_BUSY_CANDIDATES]
    staying = [activity for activity in activities if activity.share >= _STAYING_SHARE and activity not in busy]
    candidates = busy + staying[:_STAYING_CANDIDATES]
    chosen: list[_NodeActivity] = []
    score = 0.0
    for _ in range(min(nodes, len(candidates))):
        scores = [_score([*chosen, activity], nodes, duration_s) for activity in candidates]
        score = max(scores)
        chosen.append(candidates.pop(scores.index(score)))
    return [activity.node for activity in chosen], score


def _score(activities: Sequence[_NodeActivity], nodes: int, duration_s: float) -> float:
    """How well some nodes show what is difficult about idle nodes; more is better.

    Counts joins, leaves and changes from one to the other, each up to a limit. Adds for nodes that stay. Subtracts for
    time with fewer than two idle nodes, and again for time with none.
    """
    enough = _CHANGES_PER_NODE * nodes / 2
    idle = sum(activity.idle_first for activity in activities)
    joins: set[float] = set()
    leaves: set[float] = set()
    turns = direction = 0
    last = few = none = 0.0
    for time, change in sorted(change for activity in activities for change in activity.changes):
        few += (time - last) * (idle < _FEW_NODES)
        none += (time - last) * (idle == 0)
        turns += direction == -change
        last, direction, idle = time, change, idle + change
        (joins if change > 0 else leaves).add(time)
    few += (duration_s - last) * (idle < _FEW_NODES)
    none += (duration_s - last) * (idle == 0)
    staying = sum(activity.share >= _STAYING_SHARE for activity in activities)
    return (
        min(len(joins), enough)
        + min(len(leaves), enough)
        + min(turns, enough)
        + 2.0 * min(staying, nodes / 4)
        + 4.0 * sum(activity.share for activity in activities) / nodes
        - 30.0 * few / duration_s
        - 30.0 * none / duration_s
    )
