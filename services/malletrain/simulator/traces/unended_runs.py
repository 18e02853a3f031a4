"""Runs of which the log knows no end: those that go on, and those of which the end was missed (runaway jobs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.simulator.traces.columns import Seconds
from malletrain.simulator.traces.run_table import Indices, RunTable

_SHARED = 0.01
"""Nodes on which more than this share of the runs begins during another one are shared."""


@dataclass(frozen=True)
class UnendedRuns:
    """What was found of the runs without an end.

    Attributes:
        going_on: How many go on to the end of the log.
        superseded: How many are the earlier row of a run that another row ends, as in dumps of several months.
        runaway: How many were taken as ended, because later jobs began on their nodes.
        runaway_node_s: Node-seconds that these were taken to hold.
        oldest: Index of the oldest runaway run; None if there is none.
        oldest_s: Its first second.
    """

    going_on: int = 0
    superseded: int = 0
    runaway: int = 0
    runaway_node_s: float = 0.0
    oldest: int | None = None
    oldest_s: float = 0.0


def end_runaway_runs(table: RunTable) -> tuple[RunTable, UnendedRuns]:
    """End the runs that can't still go on.

    On nodes that run one job at a time, a later job that begins on one of its nodes shows that a job has ended by then.
    On shared nodes it shows nothing: there a job that later jobs follow on all of its nodes has ended if it were longer
    than any run that has ended, and is taken to be as long as that one.

    Returns:
        The table with ends for them, which is without the rows that another row of the same run supersedes; and what
        was found.
    """
    unended = np.isnan(table.until_s)
    # Queries that cut times to theirs print their own end for what still runs.
    cut = table.ran_on & (table.until_s == np.max(table.until_s, initial=-np.inf, where=~unended))
    if cut.any():
        table = table.with_ends(np.where(cut, np.nan, table.until_s))
        unended |= cut
    if not unended.any():
        return table, UnendedRuns()
    superseded = unended & (table.key != 0) & np.isin(table.key, table.key[~unended])
    # Of two rows of one run that both lack an end, the first is enough.
    open_runs = np.flatnonzero(unended & ~superseded & (table.key != 0))
    first = np.unique(table.key[open_runs], return_index=True)[1]
    superseded[np.setdiff1d(open_runs, open_runs[first])] = True
    table = table.without_runs(superseded)
    unended = unended[~superseded]
    until_s = table.until_s.copy()
    ended = table.until_s[~unended]
    longest_s = float((ended - table.from_s[~unended]).max()) if ended.size else np.inf
    last_s = max(float(table.from_s.max()), float(ended.max()) if ended.size else -np.inf)
    next_s, shared = _followers(table, unended)
    place = np.searchsorted(table.run, np.flatnonzero(unended), side="left")
    stop = np.searchsorted(table.run, np.flatnonzero(unended), side="right")
    for run, begin, end in zip(np.flatnonzero(unended), place, stop, strict=True):
        later, exclusive = next_s[begin:end], ~shared[table.node[begin:end]]
        if (followed := later[exclusive]).size and np.isfinite(followed).any():
            until_s[run] = followed.min()
        elif np.isfinite(later).all() and last_s - table.from_s[run] > longest_s:
            until_s[run] = table.from_s[run] + longest_s
    ran_away = np.flatnonzero(unended & ~np.isnan(until_s))
    held = np.bincount(table.run, minlength=table.size)
    oldest = int(ran_away[np.argmin(table.from_s[ran_away])]) if ran_away.size else None
    found = UnendedRuns(
        going_on=int(np.isnan(until_s).sum()),
        superseded=int(superseded.sum()),
        runaway=int(ran_away.size),
        runaway_node_s=float((held[ran_away] * (until_s[ran_away] - table.from_s[ran_away])).sum()),
        oldest=oldest,
        oldest_s=float(table.from_s[oldest]) if oldest is not None else 0.0,
    )
    return table.with_ends(until_s), found


def _followers(table: RunTable, unended: NDArray[np.bool_]) -> tuple[Seconds, NDArray[np.bool_]]:
    """When the next run begins on each held node, infinity if none does; and which nodes are shared."""
    begin = table.from_s[table.run]
    order = np.lexsort((begin, table.node))
    node, begin = table.node[order], begin[order]
    next_s = np.full(node.size, np.inf)
    # Runs that begin in the same second are followed by what begins later than all of them.
    group = np.flatnonzero(np.r_[True, (node[1:] != node[:-1]) | (begin[1:] != begin[:-1])])
    same = np.r_[node[group][1:] == node[group][:-1], False]
    following = np.where(same, np.r_[begin[group][1:], np.inf], np.inf)
    next_s[order] = np.repeat(following, np.diff(np.r_[group, node.size]))
    return next_s, _shared_nodes(table, unended, order)


def _shared_nodes(table: RunTable, unended: NDArray[np.bool_], order: Indices) -> NDArray[np.bool_]:
    order = order[~unended[table.run[order]]]
    run = table.run[order]
    node, begin, end = table.node[order], table.from_s[run], table.until_s[run]
    overlaps = np.zeros(len(table.names), np.int64)
    runs = np.bincount(node, minlength=len(table.names))
    bounds = np.flatnonzero(np.r_[True, node[1:] != node[:-1]]) if node.size else np.empty(0, np.int64)
    for first, stop in zip(bounds, np.r_[bounds[1:], node.size], strict=True):
        latest = np.maximum.accumulate(end[first:stop])
        overlaps[node[first]] = int((begin[first + 1 : stop] < latest[:-1]).sum())
    shared: NDArray[np.bool_] = overlaps > _SHARED * runs
    return shared
