"""What is known of the time before the services were heard. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from malletrain.common.gpus import node_of
from malletrain.dashboard.facts import HeldFact
from malletrain.dashboard.history import KEPT_S, MOST_FRAGMENTS, History, NodePeriod


def backfilled(history: History, rows: Iterable[HeldFact]) -> History:
    """What is known of the time before the services were heard: which job had which node, by the journal.

    Nodes that are idle now and were nobody's are shown from when they became idle. Of others the journal says nothing.

    Args:
        history: The history so far.
        rows: Rows of the journal, oldest first; those from `began` on are left out.
    """
    found = _held_before(rows, history.began)
    found += _unassigned_before(history, found)
    oldest = history.now - KEPT_S
    kept = sorted((item for item in found if (item.end or 0.0) > max(item.start, oldest)), key=lambda item: item.start)
    kept = kept[-MOST_FRAGMENTS:]
    return replace(
        history,
        fragments=(*kept, *history.fragments),
        epoch=history.epoch + 1,
        open={node: place + len(kept) for node, place in history.open.items()},
    )


def _held_before(rows: Iterable[HeldFact], until: float) -> list[NodePeriod]:
    """Periods in which jobs had nodes, by the journal."""
    named: dict[str, dict[str, str]] = {}  # of each node: its job, or those of its GPUs by name
    of_job: dict[str, frozenset[str]] = {}
    since: dict[str, tuple[tuple[str, ...], float]] = {}
    found: list[NodePeriod] = []
    for row in rows:
        if row.time >= until:
            break
        before = of_job.get(row.job_id, frozenset())
        of_job[row.job_id] = row.nodes
        for name in before - row.nodes:
            if named[node_of(name)].get(name) == row.job_id:
                del named[node_of(name)][name]
        for name in row.nodes - before:
            named.setdefault(node_of(name), {})[name] = row.job_id
        for node in {node_of(name) for name in before ^ row.nodes}:
            jobs, start = since.get(node, ((), row.time))
            now = tuple(sorted(set(named[node].values())))
            if now != jobs:
                found += _period(node, jobs, start, row.time)
                since[node] = (now, row.time)
    for node, (jobs, start) in since.items():
        found += _period(node, jobs, start, until)
    return found


def _period(node: str, jobs: tuple[str, ...], start: float, end: float) -> list[NodePeriod]:
    return [NodePeriod(node, jobs[0], start, end, jobs[1:])] if jobs else []


def _unassigned_before(history: History, taken: Iterable[NodePeriod]) -> list[NodePeriod]:
    """Periods before `began` in which nodes that are idle now were nobody's."""
    by_node: dict[str, list[NodePeriod]] = {}
    for fragment in taken:
        by_node.setdefault(fragment.node, []).append(fragment)
    found = []
    for node in (history.nodes or {}).values():
        start = max(node.idle_since, history.now - KEPT_S)
        for fragment in sorted(by_node.get(node.name, ()), key=lambda fragment: fragment.start):
            if fragment.start > start:
                found.append(NodePeriod(node.name, "", start, fragment.start))
            start = max(start, fragment.end or start)
        if start < history.began:
            found.append(NodePeriod(node.name, "", start, history.began))
    return found
