"""From the polls of a log to the trace of its idle nodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.polling import Poll
from malletrain.simulator.traces.system_nodes import SystemNodes, match_names


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
    kept = [
        not math.isnan(time_s) and (only_idle or not poll.content.is_empty)
        for poll, time_s in zip(polls, times_s, strict=True)
    ]
    times = list(itertools.compress(times_s, kept))
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
    found = [
        (times[first] - start_s, position[name], times[min(last, end)] - start_s)
        for name, first, last in _spells(polls, kept)
        # Periods at the begin or end of the log are not known to be pauses between two jobs.
        if last - first > debounce or first == 0 or last > end
        if first < end
    ]
    present_s = {} if listed is None else _within(listed.present_s, start_s, times[-1])
    fragments = []
    for first, node, last in sorted(found):
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


def _spells(polls: Sequence[Poll], kept: Sequence[bool]) -> Iterator[tuple[str, int, int]]:
    """Idle periods of each node as numbers of polls that are kept; one that goes on ends after the last."""
    idle: set[str] = set()
    changed: set[str] = set()
    since: dict[str, int] = {}
    index = 0
    for poll, is_kept in zip(polls, kept, strict=True):
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
