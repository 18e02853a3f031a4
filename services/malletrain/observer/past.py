"""The time before the dashboard heard the services, from what they have recorded. Pure.

Which jobs had which nodes, and whether workers trained on them, is in JobManager's journal; which nodes were idle is
in the Allocator's history. Node-seconds are counted as of what is heard.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.common.gpus import gpu_number, node_of
from malletrain.model.node_use import NodeUse
from malletrain.observer.accounting import charge, gpus_of, use_by
from malletrain.observer.facts import HeldFact, IdleFact
from malletrain.observer.history import KEPT_S, MAX_FRAGMENTS, NOTHING, USES, History, Minute, NodePeriod
from malletrain.observer.job_facts import JobFact

_MINUTE_S = 60.0
_UNASSIGNED = USES.index(NodeUse.UNASSIGNED)


@dataclass(frozen=True)
class Past:
    """The time before the services were heard.

    Attributes:
        fragments: Which job had which node, or that none had it, by their begin.
        minutes: Oldest first, from when the idle nodes are known.
    """

    fragments: tuple[NodePeriod, ...] = ()
    minutes: tuple[Minute, ...] = ()


def past_of(
    history: History,
    rows: Iterable[HeldFact],
    idle: Iterable[IdleFact] = (),
) -> Past:
    """The day before `history.began`.

    Args:
        history: What has been heard since.
        rows: Rows of the journal, oldest first, up to now.
        idle: Changes of the idle set, oldest first; without any, nodes that are idle now are taken to have been idle
            since they say so, and there are no minutes.
    """
    known = list(idle)
    changes = known or [
        IdleFact(node.idle_since, joined=frozenset({node.name})) for node in (history.nodes or {}).values()
    ]
    changes.sort(key=lambda change: change.time)
    past = _Replay(history)
    events: list[Iterable[HeldFact | IdleFact]] = [rows, changes]
    for entry in heapq.merge(*events, key=lambda entry: entry.time):
        if isinstance(entry, HeldFact):
            past.job_changed(entry)
        elif entry.time < history.began:
            past.nodes_changed(entry, counted=bool(known))
    return past.past()


def with_past(history: History, past: Past) -> History:
    """The history with the time before it.

    Args:
        history: What has been heard since.
        past: The time before.
    """
    recent = past.fragments[-MAX_FRAGMENTS:]
    minutes = {minute.start: minute for minute in past.minutes}
    for facts in history.stalls.values():
        for stall in facts:
            late = max(0.0, stall.time - history.began)
            if late < stall.seconds:
                earlier = replace(stall, time=stall.time - late, seconds=stall.seconds - late)
                charge(minutes, earlier, history.unit_nodes.get(stall.job_id, 1.0))
    for minute in history.minutes:
        minutes[minute.start] = _sum(minutes[minute.start], minute) if minute.start in minutes else minute
    before, heard = _join(recent, history)
    return replace(
        history,
        fragments=(*before, *heard),
        epoch=history.epoch + 1,
        open={node: place + len(before) for node, place in history.open.items()},
        minutes=tuple(minutes[start] for start in sorted(minutes)),
    )


def _join(recent: Sequence[NodePeriod], history: History) -> tuple[list[NodePeriod], list[NodePeriod]]:
    """Fragments before and since the services were heard; those that went on are one."""
    ending = {item.node: item for item in recent if item.end == history.began}
    heard, went_on = list(history.fragments), set[str]()
    for place, item in enumerate(heard):
        before = ending.get(item.node)
        if before is not None and item.start <= history.began and item.jobs == before.jobs:
            heard[place] = replace(item, start=before.start)
            went_on.add(item.node)
    return [item for item in recent if item.end != history.began or item.node not in went_on], heard


def _sum(first: Minute, second: Minute) -> Minute:
    return Minute(
        first.start,
        tuple(one + other for one, other in zip(first.node_seconds, second.node_seconds, strict=True)),
    )


class _Replay:
    """Goes through the past, change by change."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._time = self._oldest = history.now - KEPT_S
        self._counting = False
        self._idle: set[str] = set()
        self._jobs: dict[str, JobFact] = {}
        self._held: dict[str, dict[str, dict[str, NodeUse]]] = {}  # of each node: by job, the uses of names
        self._shares: dict[str, tuple[float, ...]] = {}
        self._counts = [0.0] * len(USES)
        self._labels: dict[str, tuple[tuple[str, ...], float]] = {}
        self._fragments: list[NodePeriod] = []
        self._minutes: dict[float, Minute] = {}

    def nodes_changed(self, change: IdleFact, *, counted: bool) -> None:
        """Nodes have joined or left."""
        self._account(change.time)
        left = (self._idle - change.joined) if change.whole else change.left
        joined = change.joined - self._idle
        self._idle = set(change.joined) if change.whole else (self._idle - left) | joined
        self._counting = self._counting or (counted and change.whole)
        for node in (*left, *joined):
            self._touch(node, change.time)

    def job_changed(self, row: HeldFact) -> None:
        """A row of the journal."""
        before = self._jobs.get(row.job_id) or JobFact(row.job_id)
        known = self._history.jobs.get(row.job_id, before)
        confirmed = row.nodes if row.confirmed or row.state == "RUNNING" else before.confirmed
        if row.state not in ("RUNNING", "RESCALING", "STOPPING"):
            confirmed = frozenset()
        job = replace(known, state=row.state, commanded=row.nodes, confirmed=confirmed)
        self._jobs[row.job_id] = job
        if row.time >= self._history.began:
            return
        self._account(row.time)
        nodes: dict[str, dict[str, NodeUse]] = {}
        for name in job.commanded | job.confirmed:
            nodes.setdefault(node_of(name), {})[name] = use_by(job, name, stalled=False)
        for node in {node_of(name) for name in before.commanded | before.confirmed} | nodes.keys():
            held = self._held.setdefault(node, {})
            held.pop(job.id, None)
            if node in nodes:
                held[job.id] = nodes[node]
            self._touch(node, row.time)

    def past(self) -> Past:
        """All that was found."""
        began = self._history.began
        self._account(began)
        for node, (jobs, since) in self._labels.items():
            self._add_period(node, jobs, since, began)
        self._fragments.sort(key=lambda fragment: fragment.start)
        return Past(tuple(self._fragments), tuple(self._minutes[start] for start in sorted(self._minutes)))

    def _account(self, time: float) -> None:
        """Count node-seconds until then."""
        start, self._time = self._time, max(self._time, time)
        while self._counting and start < time:
            first = start - start % _MINUTE_S
            end = min(time, first + _MINUTE_S)
            minute = self._minutes.get(first) or Minute(first)
            longer = (
                total + (end - start) * count for total, count in zip(minute.node_seconds, self._counts, strict=True)
            )
            self._minutes[first] = replace(minute, node_seconds=tuple(longer))
            start = end

    def _touch(self, node: str, time: float) -> None:
        """A node is another's, or used otherwise, from a moment on."""
        held = self._held.get(node, {})
        jobs, since = self._labels.get(node, ((), time))
        label = tuple(sorted(held))
        counts = bool(held) or node in self._idle
        if node in self._labels and (label != jobs or not counts):
            self._add_period(node, jobs, since, time)
            del self._labels[node]
        if counts and node not in self._labels:
            self._labels[node] = (label, time)
        share = self._share(node, held)
        for place, (old, new) in enumerate(zip(self._shares.get(node, NOTHING), share, strict=True)):
            self._counts[place] = max(0.0, self._counts[place] + new - old)
        self._shares[node] = share

    def _share(self, node: str, held: Mapping[str, Mapping[str, NodeUse]]) -> tuple[float, ...]:
        """What a node counts for by use; nothing while it is not idle."""
        if node not in self._idle:
            return NOTHING
        counts = [0.0] * len(USES)
        for job_id, names in held.items():
            for name, use in names.items():
                whole = gpu_number(name) is None
                counts[USES.index(use)] += 1.0 if whole else 1.0 / gpus_of(self._history, self._jobs[job_id], node)
        total = max(1.0, sum(counts))
        counts = [share / total for share in counts]
        counts[_UNASSIGNED] = max(0.0, 1.0 - sum(counts))
        return tuple(counts)

    def _add_period(self, node: str, jobs: tuple[str, ...], start: float, end: float) -> None:
        if end > max(start, self._oldest):
            self._fragments.append(NodePeriod(node, jobs[0] if jobs else "", start, end, jobs[1:]))
