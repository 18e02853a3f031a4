"""Which part of a log of jobs can be trusted to show all jobs, and runs of which the log knows no end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.columns import Seconds
from malletrain.simulator.traces.runs import Indices, Recorded, RunTable

DAY_S = 86400.0
MAX_SMALL_LOG_S = DAY_S
"""A log that is as short as that and covers no time for sure is taken to be whole."""
MIN_QUIET_S = DAY_S
"""A time of at least this length, and of `_QUIET_SHARE` of the window, without any start or end is told."""
_QUIET_SHARE = 0.05
_STRAY_GAP_S = 90 * DAY_S
_STRAY_SHARE = 0.01
Interval = tuple[float, float]
"""First second, and first second after the end."""


@dataclass(frozen=True)
class LogWindow:
    """The window of a trace.

    Attributes:
        begin: First second, in seconds since 1970.
        end: First second after it.
        chosen: How it was chosen, for people.
        log: First start and last end or start in the log.
        covered: Earliest end and latest start: the log shows each run that held nodes at any time between them. The
            first may be above the second.
        quiet: The longest time within the window in which nothing began or ended, if it is worth telling.
    """

    begin: float
    end: float
    chosen: str
    log: Interval
    covered: Interval
    quiet: Interval | None = None

    @property
    def bounds(self) -> Interval:
        """Begin and end."""
        return self.begin, self.end


def window_of(
    table: RunTable, chosen: Interval | None, calendar: CalendarReader, name: str, recorded: Recorded | None = None
) -> LogWindow:
    """Choose the window of a trace.

    What a query for jobs prints begins with those that ran at its begin, and ends with those that ran at its end:
    whatever ran before the earliest end in the log, or after the latest start, need not be in it. So that is the
    window, unless one is given, or the log was written as jobs began and ended. Few rows whose times lie apart from
    all others by months are errors in the log and are not looked at.

    Args:
        table: The runs. Those without an end have none that counts.
        chosen: What the user wants.
        calendar: Has read the log's times.
        name: Of the log, for errors.
        recorded: Within which time the log has each start and each end; None: that is not known.

    Raises:
        InvalidInputError: the given window is outside of the log, or no part of the log shows all jobs for sure.
    """
    from_s, until_s = table.from_s, table.until_s
    ended = ~np.isnan(until_s)
    log = float(from_s.min()), float(max(from_s.max(), until_s[ended].max(initial=-np.inf)))
    first, last = _without_strays(np.sort(np.concatenate([from_s, until_s[ended]])))
    ends = until_s[ended & (until_s >= first) & (until_s <= last)]
    starts = from_s[(from_s >= first) & (from_s <= last)]
    covered = float(ends.min(initial=np.inf)), float(starts.max(initial=-np.inf))
    if chosen is not None:
        if chosen[1] <= log[0] or chosen[0] >= log[1]:
            reach = f"{calendar.text(log[0])} to {calendar.text(log[1])}, of which {name} tells"
            raise InvalidInputError("--window", f"a part of {reach}", calendar.text(chosen[0]))
        return LogWindow(*chosen, "as given", log, covered, _quiet(table, chosen))
    if recorded is not None and recorded.from_s < recorded.until_s:
        bounds = (
            first if first - recorded.from_s > _STRAY_GAP_S else recorded.from_s,
            last if recorded.until_s - last > _STRAY_GAP_S else recorded.until_s,
        )
        return LogWindow(*bounds, "from the first to the last record", log, bounds, _quiet(table, bounds))
    if covered[0] < covered[1]:
        return LogWindow(*covered, "from the earliest end to the latest start", log, covered, _quiet(table, covered))
    if first < last <= first + MAX_SMALL_LOG_S and ends.size:
        # Nothing is for sure here; a few jobs of one day are rather an example, or all there was, than a query's edge.
        return LogWindow(first, last, "from the first start to the last end, as if the log had all jobs", log, covered)
    raise InvalidInputError(
        name,
        "some time of which all jobs are known: each job runs at the same time as all others, so that nothing is known"
        f" of what ran before and after; --window FROM TO, within {calendar.text(first)} to {calendar.text(last)},"
        " says which time the log covers",
    )


def _without_strays(times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval:
    """First and last time without the few at either end that lie months away from all others."""
    first, last = 0, times.size - 1
    few = _STRAY_SHARE * times.size
    gaps = np.flatnonzero(np.diff(times) > _STRAY_GAP_S)
    for gap in gaps:
        if gap + 1 <= few:
            first = int(gap) + 1
    for gap in gaps[::-1]:
        if times.size - (gap + 1) <= few:
            last = int(gap)
    return float(times[first]), float(times[last])


def _quiet(table: RunTable, bounds: Interval) -> Interval | None:
    begin, end = bounds
    times = np.concatenate([table.from_s, table.until_s, bounds])
    times = np.unique(times[(times >= begin) & (times <= end)])
    gaps = np.diff(times)
    if not gaps.size or gaps.max() < max(MIN_QUIET_S, _QUIET_SHARE * (end - begin)):
        return None
    at = int(np.argmax(gaps))
    return float(times[at]), float(times[at + 1])


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
    unended_runs = UnendedRuns(
        going_on=int(np.isnan(until_s).sum()),
        superseded=int(superseded.sum()),
        runaway=int(ran_away.size),
        runaway_node_s=float((held[ran_away] * (until_s[ran_away] - table.from_s[ran_away])).sum()),
        oldest=oldest,
        oldest_s=float(table.from_s[oldest]) if oldest is not None else 0.0,
    )
    return table.with_ends(until_s), unended_runs


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
