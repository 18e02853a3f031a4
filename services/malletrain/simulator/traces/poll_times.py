"""Times of polls in the order in which they were made, also where a clock of local time was put forward or back."""

from __future__ import annotations

import itertools
import math
import statistics
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.polling import Poll
from malletrain.simulator.traces.runs import SkippedRow

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
    found = PollTimes()
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
                found.times_s.append(math.nan)
                found.late.append(_late(poll, before))
                continue
            if step_s and not (in_zone and step_s < 0):
                found.assumed[SUMMER_TIME_ENDED if step_s > 0 else SUMMER_TIME_BEGAN] += 1
            elif time_s - last_s > longest_gap_s:
                found.assumed[LONG_GAP] += 1
        found.times_s.append(time_s)
        before, last_s = poll, time_s
    return found


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
        found = (step_s for step_s in _STEPS_S if 0 < gap_s + step_s <= longest_gap_s)
        return next(found, _HOUR_S if another_zone and gap_s > -_HOUR_S else 0.0)
    put_forward = another_zone or _over_the_hour(before.time_s, poll.time_s)
    return -_HOUR_S if put_forward and 0 < gap_s - _HOUR_S <= longest_gap_s else 0.0


def _over_the_hour(before_s: float, after_s: float) -> bool:
    """Whether these are just before a full hour, and just after the next one, in the night to a Sunday."""
    hour_s = (before_s // _HOUR_S + 1) * _HOUR_S
    left_out_s = (hour_s - before_s) + (after_s - hour_s - _HOUR_S)
    is_sunday = int(hour_s // _DAY_S) % 7 == _SUNDAY
    in_the_night = hour_s % _DAY_S / _HOUR_S <= _LAST_HOUR
    return is_sunday and in_the_night and after_s >= hour_s + _HOUR_S and left_out_s < _HOUR_S / 2
