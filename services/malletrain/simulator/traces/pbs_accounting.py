"""PBS accounting logs: `MM/DD/YYYY HH:MM:SS;TYPE;ID;key=value ...`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.occupancy import BusyPeriod

_RECORD = re.compile(r"(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d);([A-Za-z]+);([^;]*);(.*)", re.DOTALL)
_ENTRY = re.compile(r"(?:^|\s)(start|end|exec_host|exec_vnode)=(\S+)")
_VNODE = re.compile(r"[(+]([^:()+\s]+)")
_STARTED = "S"
_ENDED = ("E", "R")


def parse_pbs(lines: Iterable[Line], calendar: CalendarReader) -> list[BusyPeriod]:
    """Busy periods of jobs.

    An `E` record (ended) or `R` record (rerun) describes a whole run, from its `start=` to its `end=`. A job with an
    `S` record (started) and no later `E` or `R` record has not ended. Other records are skipped. Nodes are the hosts of
    `exec_host=`, or the vnodes of `exec_vnode=` if there is none.

    Args:
        lines: One or more logs, in the order of time.
        calendar: Reads the times of the conversion; those of PBS are seconds since 1970.

    Raises:
        InvalidInputError: a line is malformed; the error names its place and what was expected.
    """
    found: list[BusyPeriod] = []
    running: dict[str, BusyPeriod] = {}
    for place, text in lines:
        if not text.strip():
            continue
        record = _RECORD.fullmatch(text)
        if record is None:
            raise InvalidInputError(place, "a record MM/DD/YYYY HH:MM:SS;TYPE;ID;...", text[:80])
        kind, identity, message = record[2], record[3], record[4]
        if kind != _STARTED and kind not in _ENDED:
            continue
        entries = dict(_ENTRY.findall(message))
        if kind == _STARTED:
            running[identity] = BusyPeriod(
                place, _nodes(entries, place), _time(entries, "start", place, calendar), None
            )
            continue
        begun = running.pop(identity, None)
        # A job that was deleted before it ran has an end and no start; the record of a rerun may lack the start.
        if "start" not in entries and begun is None:
            continue
        from_s = _time(entries, "start", place, calendar) if begun is None or "start" in entries else begun.from_s
        until_s = _time(entries, "end", place, calendar)
        if until_s < from_s:
            raise InvalidInputError(place, f"end= at or after start= ({from_s:.0f})", entries["end"])
        if until_s > from_s:
            named = "exec_host" in entries or "exec_vnode" in entries or begun is None
            nodes = _nodes(entries, place) if named or begun is None else begun.nodes
            found.append(BusyPeriod(place, nodes, from_s, until_s))
    return [*found, *running.values()]


def _time(entries: dict[str, str], key: str, place: str, calendar: CalendarReader) -> float:
    text = entries.get(key, "")
    if not text.isdecimal():
        raise InvalidInputError(place, f"{key}= in seconds since 1970", text)
    return calendar.read(text, place)


def _nodes(entries: dict[str, str], place: str) -> tuple[str, ...]:
    """Nodes without duplicates: a job may use several chunks of one node."""
    hosts = [part.split("/", 1)[0] for part in entries.get("exec_host", "").split("+") if part]
    names = hosts or _VNODE.findall(entries.get("exec_vnode", ""))
    if not names or not all(names):
        raise InvalidInputError(place, "exec_host=NAME/... or exec_vnode=(NAME:...)", entries.get("exec_host", ""))
    return tuple(dict.fromkeys(names))
