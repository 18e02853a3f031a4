"""From the polls of a log to the trace of its idle nodes.

Times of polls are put in the order in which they were made, also where a clock of local time was put forward or back.
"""

from __future__ import annotations

import itertools
import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.polling import Poll
from malletrain.simulator.traces.runs import SkippedRow
from malletrain.simulator.traces.system_nodes import SystemNodes, match_names

SUMMER_TIME_ENDED = "summer time ended just before: an hour added to all later times"
SUMMER_TIME_BEGAN = "summer time began just before: an hour taken from all later times"
LONG_GAP = "no poll for more than ten intervals before: nodes that were idle before and after count as idle meanwhile"
_HOUR_S = 3600.0
_STEPS_S = (1800.0, _HOUR_S)
"""By how much clocks are put back. Half an hour: Lord Howe Island."""
_INTERVALS = 10.0
_MIN_GAP_S = 120.0
_GAP_WITHOUT_INTERVAL_S = 900.0
_DAY_S = 86400.0
_SUNDAY = 3
"""Days since the first of January 1970, a Thursday, modulo 7."""
_LAST_HOUR = 3


@dataclass
class PollTimes:
    """When polls were made.

    Attributes:
        times_s: Seconds since 1970 of each poll, in increasing order; NaN of one whose time is not known.
        assumed: What was assumed, and of how many of them.
        late: What is wrong with the polls of which the time is not known.
    """

    times_s: array[float] = field(default_factory=lambda: array("d"))
    assumed: Counter[str] = field(default_factory=Counter)
    late: list[SkippedRow] = field(default_factory=list)


def poll_times(polls: Sequence[Poll], *, in_zone: bool = False) -> PollTimes:
    """The times of polls.

    In a log of local times, a step back by an hour, less one interval, is the end of summer time. A step forward by
    an hour and one interval is its begin, if it is over a full hour in the night to a Sunday, or if `date` printed
    another zone. A poll that is otherwise not later than the one before has no time.

    Args:
        polls: In the order of the log.
        in_zone: Whether the zone of local times is known. Then only the second pass of the hour that the end of summer
            time repeats is an hour off.
    """
    times = PollTimes()
    longest_gap_s = _longest_gap(polls)
    shift_s = 0.0
    before: Poll | None = None
    last_s = 0.0
    for poll in polls:
        time_s = poll.time_s + shift_s
        if before is not None:
            step_s = _step(before, poll, time_s - last_s, longest_gap_s) if poll.content.is_local else 0.0
            if in_zone and shift_s and 0 < time_s - last_s - shift_s <= longest_gap_s:
                step_s = -shift_s
            shift_s, time_s = shift_s + step_s, time_s + step_s
            if time_s <= last_s:
                times.times_s.append(math.nan)
                times.late.append(_late(poll, before))
                continue
            if step_s and not (in_zone and step_s < 0):
                times.assumed[SUMMER_TIME_ENDED if step_s > 0 else SUMMER_TIME_BEGAN] += 1
            elif time_s - last_s > longest_gap_s:
                times.assumed[LONG_GAP] += 1
        times.times_s.append(time_s)
        before, last_s = poll, time_s
    return times


def _late(poll: Poll, before: Poll) -> SkippedRow:
    error = InvalidInputError(
        poll.place, f"a time after that of {before.place}", f"one {before.time_s - poll.time_s:g} s earlier"
    )
    return SkippedRow("a time that is not later than the one before", error)


def _longest_gap(polls: Sequence[Poll]) -> float:
    """How far apart two polls may be that follow each other, in seconds."""
    gaps = [after.time_s - before.time_s for before, after in itertools.pairwise(polls) if after.time_s > before.time_s]
    return max(_MIN_GAP_S, _INTERVALS * statistics.median_low(gaps)) if gaps else _GAP_WITHOUT_INTERVAL_S


def _step(before: Poll, poll: Poll, gap_s: float, longest_gap_s: float) -> float:
    """What must be added to times from here on, in seconds."""
    another_zone = bool(before.content.zone and poll.content.zone) and before.content.zone != poll.content.zone
    if gap_s <= 0:
        fitting = (step_s for step_s in _STEPS_S if 0 < gap_s + step_s <= longest_gap_s)
        return next(fitting, _HOUR_S if another_zone and gap_s > -_HOUR_S else 0.0)
    put_forward = another_zone or _over_the_hour(before.time_s, poll.time_s)
    return -_HOUR_S if put_forward and 0 < gap_s - _HOUR_S <= longest_gap_s else 0.0


def _over_the_hour(before_s: float, after_s: float) -> bool:
    """Whether these are just before a full hour, and just after the next one, in the night to a Sunday."""
    hour_s = (before_s // _HOUR_S + 1) * _HOUR_S
    left_out_s = (hour_s - before_s) + (after_s - hour_s - _HOUR_S)
    is_sunday = int(hour_s // _DAY_S) % 7 == _SUNDAY
    in_the_night = hour_s % _DAY_S / _HOUR_S <= _LAST_HOUR
    return is_sunday and in_the_night and after_s >= hour_s + _HOUR_S and left_out_s < _HOUR_S / 2


def trace_of_polls(
    polls: Sequence[Poll],
    times_s: Sequence[float],
    places: Mapping[str, str],
    calendar: CalendarReader,
    listed: SystemNodes | None = None,
    debounce: int = 0,
) -> Trace:
    """The trace of a polling log: a fragment lasts from the first poll with the node idle to the next without.

    A node that a poll does not name is not idle in it. A poll without any node has failed and is skipped, or, in a log
    that names idle nodes only, it means that no node is idle. So is one without a time. The trace begins with the first
    poll that is not skipped and ends with the last.

    Args:
        polls: In the order of time.
        times_s: When each was made; NaN where that is not known.
        places: All nodes that they name, each with a place, for errors.
        calendar: Has read their times.
        listed: All nodes; None: the nodes that the log names, sorted.
        debounce: Idle periods of at most this many polls, with other states before and after, are dropped: most are
            pauses between two jobs. BFTrainer drops those of one poll (section 2.1).

    Raises:
        InvalidInputError: there are fewer than two polls, or one names a node that is not in the list.
    """
    only_idle = not any(poll.content.names_others for poll in polls)
    is_kept = [
        not math.isnan(time_s) and (only_idle or not poll.content.is_empty)
        for poll, time_s in zip(polls, times_s, strict=True)
    ]
    times = list(itertools.compress(times_s, is_kept))
    if len(times) < 2:
        raise InvalidInputError("samples", "at least two with nodes in them", len(times))
    names = tuple(sorted(places)) if listed is None else listed.names
    index = {name: position for position, name in enumerate(names)}
    position = index
    if listed is not None:
        found_as = match_names(places, names)
        for name, place in places.items():
            if name not in found_as:
                raise InvalidInputError(place, f"nodes of {listed.place}", name)
        position = {name: index[node] for name, node in found_as.items()}
    start_s, end = times[0], len(times) - 1
    spells = [
        (times[first] - start_s, position[name], times[min(last, end)] - start_s)
        for name, first, last in _spells(polls, is_kept)
        # Periods at the begin or end of the log are not known to be pauses between two jobs.
        if last - first > debounce or first == 0 or last > end
        if first < end
    ]
    present_s = {} if listed is None else _within(listed.present_s, start_s, times[-1])
    fragments = []
    for first, node, last in sorted(spells):
        low, high = present_s.get(names[node], (first, last))
        if max(first, low) < min(last, high):
            fragments.append(Fragment(names[node], max(first, low), min(last, high)))
    there = tuple(name for name in names if name not in present_s or present_s[name][0] < present_s[name][1])
    partly = {
        name: span for name, span in present_s.items() if span[0] < span[1] and span != (0.0, times[-1] - start_s)
    }
    return Trace(tuple(fragments), there, times[-1] - start_s, origin=calendar.origin(start_s), present_s=partly)


def _within(present_s: Mapping[str, tuple[float, float]], begin: float, end: float) -> dict[str, tuple[float, float]]:
    """When nodes were part of the system, from second 0 of the trace on."""
    return {
        name: (min(max(low, begin), end) - begin, min(max(high, begin), end) - begin)
        for name, (low, high) in present_s.items()
    }


def _spells(polls: Sequence[Poll], keeps: Sequence[bool]) -> Iterator[tuple[str, int, int]]:
    """Idle periods of each node as numbers of polls that are kept; one that goes on ends after the last."""
    idle: set[str] = set()
    changed: set[str] = set()
    since: dict[str, int] = {}
    index = 0
    for poll, is_kept in zip(polls, keeps, strict=True):
        content = poll.content
        idle.difference_update(content.left)
        idle.update(content.joined)
        changed.update(content.joined, content.left)
        if not is_kept:
            continue
        if content.is_empty:
            # No node is idle now. At the next poll with nodes, those that were idle before are idle anew.
            for name, first in since.items():
                yield name, first, index
            changed.update(since)
            since.clear()
        else:
            for name in changed:
                if name not in idle and name in since:
                    yield name, since.pop(name), index
                elif name in idle:
                    since.setdefault(name, index)
            changed.clear()
        index += 1
    for name, first in since.items():
        yield name, first, index
