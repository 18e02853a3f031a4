"""Logs of a loop that polls `sinfo` for node states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.occupancy import Machine

IDLE_STATES = frozenset({"idle", "planned", "plnd"})
"""States of `sinfo` for nodes that are free and available. `planned` nodes wait for a larger job."""

_STATES = IDLE_STATES | {
    *("allocated", "alloc", "blocked", "block", "boot", "completing", "comp", "down", "drain", "drained", "draining"),
    *("drng", "fail", "failg", "failing", "future", "futr", "inval", "maint", "mix", "mixed", "npc", "perfctrs"),
    *("pow_dn", "pow_off", "pow_up", "power_down", "power_up", "powered_down", "powering_down", "powering_up"),
    *("reboot", "reboot_issued", "reboot_requested", "reserved", "resv", "unk", "unknown"),
}
_SUFFIXES = "*~#!%$@^-+"
_MARKER = re.compile(
    r"(?:#\s*|@\s*)?"
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\d{9,}(?:\.\d+)?|[A-Z][a-z]{2} [A-Z][a-z]{2} .*\d{4})"
)


@dataclass
class PollSample:
    """Result of one poll.

    Attributes:
        place: `file:line` of its time.
        time_s: Time in seconds since 1970.
        idle: Idle nodes, each with the place where it is named.
        others: Nodes in any other state.
    """

    place: str
    time_s: float
    idle: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def parse_polls(lines: Iterable[Line], calendar: CalendarReader) -> list[PollSample]:
    """Samples of a polling log.

    Each sample begins with a line that contains only a time; a `#` or `@` before it is allowed, and the first line of
    `sinfo -N -l` is such a line. The following lines are output of `sinfo -h -o '%T|%N'`, of `sinfo -h -N -o '%N|%T'`
    (further columns after the state are ignored), of `sinfo -h -N -o '%N %T'` or of `sinfo -N -l` with its header.

    Raises:
        InvalidInputError: a line has none of these forms, or a sample is not later than the one before.
    """
    samples: list[PollSample] = []
    for place, text in lines:
        line = text.strip()
        if not line or line.startswith("NODELIST"):
            continue
        marker = _MARKER.fullmatch(line)
        if marker:
            time_s = calendar.read(marker[1], place)
            if samples and time_s <= samples[-1].time_s:
                raise InvalidInputError(place, f"a time after that of {samples[-1].place}", marker[1])
            samples.append(PollSample(place, time_s))
            continue
        nodes, state = _nodes_and_state(line, place)
        if not samples:
            raise InvalidInputError(place, "a line with the time before the first nodes", line[:80])
        into = samples[-1].idle if state in IDLE_STATES else samples[-1].others
        into.update(dict.fromkeys(expand(nodes, place), place))
    return samples


def _nodes_and_state(line: str, place: str) -> tuple[str, str]:
    cells = line.split("|") if "|" in line else line.split()
    cells = [cell.strip() for cell in cells]
    # `sinfo -N -l`: NODELIST NODES PARTITION STATE ...
    if "|" not in line and len(cells) > 3 and cells[1].isdecimal() and _is_state(cells[3]):
        return cells[0], cells[3]
    if len(cells) > 1 and _is_state(cells[1]):
        return cells[0], cells[1]
    if len(cells) == 2 and _is_state(cells[0]):
        return cells[1], cells[0]
    raise InvalidInputError(place, "STATE|NODES, NODE|STATE, a line of `sinfo -N -l` or a time", line[:80])


def _is_state(word: str) -> bool:
    return word.rstrip(_SUFFIXES) in _STATES


def trace_of_polls(
    samples: Sequence[PollSample], calendar: CalendarReader, machine: Machine | None = None, debounce: int = 0
) -> Trace:
    """The trace of a polling log: a fragment lasts from the first sample with the node idle to the next without.

    A node that a sample does not name is not idle in it. A sample without any node is a failed poll and is skipped, or,
    in a log that names idle nodes only, it means that no node is idle. The trace begins with the first sample that is
    not skipped and ends with the last.

    Args:
        samples: Samples in the order of time.
        calendar: Has read their times.
        machine: All nodes; None: the nodes that the log names, sorted.
        debounce: Idle periods of at most this many samples, with other states before and after, are dropped: most are
            pauses between two jobs. BFTrainer drops those of one sample (section 2.1).

    Raises:
        InvalidInputError: there are fewer than two samples, or one names a node that is not part of the machine.
    """
    only_idle = not any(sample.others for sample in samples)
    kept = [sample for sample in samples if only_idle or sample.idle or sample.others]
    if len(kept) < 2:
        raise InvalidInputError("samples", "at least two with nodes in them", len(kept))
    names = machine.nodes if machine else tuple(sorted({name for sample in kept for name in _named(sample)}))
    position = {name: index for index, name in enumerate(names)}
    if machine:
        _check_known(kept, position, machine.place)
    start_s = kept[0].time_s
    times = [sample.time_s - start_s for sample in kept]
    end = len(kept) - 1
    found = [
        (times[first], position[name], times[min(last, end)])
        for name, first, last in _spells(kept)
        # Periods at the begin or end of the log are not known to be pauses between two jobs.
        if last - first > debounce or first == 0 or last > end
        if first < end
    ]
    fragments = tuple(Fragment(names[node], first, last) for first, node, last in sorted(found))
    return Trace(fragments, names, times[-1], origin=calendar.origin(start_s))


def _spells(samples: Sequence[PollSample]) -> Iterator[tuple[str, int, int]]:
    """Idle periods of each node as indices of samples; a period that has not ended ends after the last sample."""
    since: dict[str, int] = {}
    for index, sample in enumerate(samples):
        idle = sample.idle.keys() - sample.others.keys()
        for name in since.keys() - idle:
            yield name, since.pop(name), index
        for name in idle - since.keys():
            since[name] = index
    for name, first in since.items():
        yield name, first, len(samples)


def _named(sample: PollSample) -> Iterable[str]:
    return sample.idle.keys() | sample.others.keys()


def _check_known(samples: Iterable[PollSample], position: Mapping[str, int], place: str) -> None:
    for sample in samples:
        for name, where in (*sample.idle.items(), *sample.others.items()):
            if name not in position:
                raise InvalidInputError(where, f"nodes of {place}", name)
