"""Which part of a log of jobs can be trusted to show all jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.run_table import RunTable
from malletrain.simulator.traces.runs import Recorded

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
    table: RunTable, given: Interval | None, calendar: CalendarReader, name: str, recorded: Recorded | None = None
) -> LogWindow:
    """Choose the window of a trace.

    What a query for jobs prints begins with those that ran at its begin, and ends with those that ran at its end:
    whatever ran before the earliest end in the log, or after the latest start, need not be in it. So that is the
    window, unless one is given, or the log was written as jobs began and ended. Few rows whose times lie apart from
    all others by months are errors in the log and are not looked at.

    Args:
        table: The runs. Those without an end have none that counts.
        given: What the user wants.
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
    if given is not None:
        if given[1] <= log[0] or given[0] >= log[1]:
            reach = f"{calendar.told(log[0])} to {calendar.told(log[1])}, of which {name} tells"
            raise InvalidInputError("--window", f"a part of {reach}", calendar.told(given[0]))
        return LogWindow(*given, "as given", log, covered, _quiet(table, given))
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
        f" of what ran before and after; --window FROM TO, within {calendar.told(first)} to {calendar.told(last)},"
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
