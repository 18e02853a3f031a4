"""Finding a busy piece of a trace: short, on few nodes, and still with all that makes idle nodes hard to use."""

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
_MOST_CHANGES_OF_A_NODE = 6
_FEW_NODES = 2


@dataclass(frozen=True)
class _Story:
    """What one node does in a window.

    Attributes:
        node: Name.
        idle_first: Whether it is idle at the start.
        changes: Seconds from the start and 1 for a join, -1 for a leave; in order.
        share: Part of the window in which it is idle.
    """

    node: str
    idle_first: bool
    changes: tuple[tuple[float, int], ...]
    share: float


def busy_excerpt(trace: Trace, duration_s: float, nodes: int) -> Trace:
    """The window and the nodes with many joins and leaves in turn, and some nodes that stay.

    Windows that overlap by half are ranked by the changes of their liveliest nodes; in the best of them, nodes are
    added one by one, each the one that makes the liveliest whole (`_score`). Nothing is renamed, and the fragments at
    both ends keep their length. The same trace gives the same excerpt.

    Args:
        trace: What to cut from.
        duration_s: Length of the excerpt in seconds.
        nodes: Number of nodes in it.

    Raises:
        InvalidInputError: the trace is shorter, or knows fewer nodes.
    """
    if not 0 < duration_s <= trace.duration_s:
        raise InvalidInputError("duration_s", f"above 0 and at most the trace's {trace.duration_s:g}", duration_s)
    if not 0 < nodes <= len(trace.nodes):
        raise InvalidInputError("nodes", f"1 to {len(trace.nodes)}, as many as the trace knows", nodes)
    index = _Index(trace, duration_s)
    best: tuple[float, float, list[str]] | None = None
    for start_s in index.liveliest_windows(nodes):
        chosen, score = _choose(index.stories(start_s), nodes, duration_s)
        if best is None or (score, -start_s) > (best[0], -best[1]):
            best = (score, start_s, chosen)
    if best is None:
        raise InvalidInputError("trace", "a window in which a node joins or leaves")
    _, start_s, names = best
    # Where too few nodes are ever idle in the window, busy ones make up the number.
    names += [name for name in trace.nodes if name not in frozenset(names)][: nodes - len(names)]
    return window(trace, start_s, duration_s, names)


class _Index:
    """The trace as columns, to look into many windows of one length quickly."""

    def __init__(self, trace: Trace, duration_s: float) -> None:
        positions = {name: index for index, name in enumerate(trace.nodes)}
        self._names = trace.nodes
        self._duration = duration_s
        self._stride = duration_s / 2
        self._windows = int((trace.duration_s - duration_s) // self._stride) + 1
        self._node = np.array([positions[entry.node] for entry in trace.fragments], dtype=np.int64)
        self._from = np.array([entry.idle_from_s for entry in trace.fragments], dtype=np.float64)
        self._until = np.array([entry.idle_until_s for entry in trace.fragments], dtype=np.float64)

    def liveliest_windows(self, nodes: int) -> list[float]:
        """Starts of the windows whose liveliest nodes change most often."""
        times = np.concatenate((self._from, self._until))
        who = np.concatenate((self._node, self._node))
        newest = np.floor(times / self._stride).astype(np.int64)
        # Every instant lies in two windows, the one that begins at or before it and the one before that.
        which = np.concatenate((newest, newest - 1))
        who = np.concatenate((who, who))
        inside = (which >= 0) & (which < self._windows)
        keys, counts = np.unique(which[inside] * len(self._names) + who[inside], return_counts=True)
        counts = np.minimum(counts, _MOST_CHANGES_OF_A_NODE)
        windows, first = np.unique(keys // len(self._names), return_index=True)
        totals = np.array([np.sort(part)[-nodes:].sum() for part in np.split(counts, first[1:])])
        ranked = np.lexsort((windows, -totals))[:_WINDOWS_TRIED]
        return [float(number) * self._stride for number in windows[ranked]]

    def stories(self, start_s: float) -> list[_Story]:
        """The nodes that are idle at any time in a window, in the trace's order."""
        end_s = start_s + self._duration
        inside = (self._until > start_s) & (self._from < end_s)
        found: dict[int, list[tuple[float, float]]] = {}
        for node, begin, end in zip(
            _list(self._node[inside]), _list(self._from[inside]), _list(self._until[inside]), strict=True
        ):
            found.setdefault(int(node), []).append((begin - start_s, end - start_s))
        return [self._story(self._names[node], spans) for node, spans in sorted(found.items())]

    def _story(self, name: str, spans: Iterable[tuple[float, float]]) -> _Story:
        changes: list[tuple[float, int]] = []
        idle = 0.0
        idle_first = False
        for begin, end in spans:
            idle += min(end, self._duration) - max(begin, 0.0)
            idle_first = idle_first or begin <= 0
            changes += [(begin, 1)] if begin > 0 else []
            changes += [(end, -1)] if end < self._duration else []
        return _Story(name, idle_first, tuple(changes), idle / self._duration)


def _list(column: NDArray[np.float64] | NDArray[np.int64]) -> list[float]:
    found: list[float] = column.tolist()
    return found


def _choose(stories: Sequence[_Story], nodes: int, duration_s: float) -> tuple[list[str], float]:
    """Names of at most so many nodes that make a lively whole, and its score."""
    busy = sorted(stories, key=lambda story: -len(story.changes))[:_BUSY_CANDIDATES]
    staying = [story for story in stories if story.share >= _STAYING_SHARE and story not in busy]
    candidates = busy + staying[:_STAYING_CANDIDATES]
    chosen: list[_Story] = []
    score = 0.0
    for _ in range(min(nodes, len(candidates))):
        scores = [_score([*chosen, story], nodes, duration_s) for story in candidates]
        score = max(scores)
        chosen.append(candidates.pop(scores.index(score)))
    return [story.node for story in chosen], score


def _score(stories: Sequence[_Story], nodes: int, duration_s: float) -> float:
    """How well nodes show what is hard about idle nodes.

    Counts joins, leaves and turns from one to the other, each up to what can still be followed; favours nodes that
    stay; takes off for time with fewer than two idle nodes, and more for time with none.
    """
    enough = _CHANGES_PER_NODE * nodes / 2
    idle = sum(story.idle_first for story in stories)
    joins: set[float] = set()
    leaves: set[float] = set()
    turns = direction = 0
    last = few = none = 0.0
    for time, change in sorted(change for story in stories for change in story.changes):
        few += (time - last) * (idle < _FEW_NODES)
        none += (time - last) * (idle == 0)
        turns += direction == -change
        last, direction, idle = time, change, idle + change
        (joins if change > 0 else leaves).add(time)
    few += (duration_s - last) * (idle < _FEW_NODES)
    none += (duration_s - last) * (idle == 0)
    staying = sum(story.share >= _STAYING_SHARE for story in stories)
    return (
        min(len(joins), enough)
        + min(len(leaves), enough)
        + min(turns, enough)
        + 2.0 * min(staying, nodes / 4)
        + 4.0 * sum(story.share for story in stories) / nodes
        - 30.0 * few / duration_s
        - 30.0 * none / duration_s
    )
