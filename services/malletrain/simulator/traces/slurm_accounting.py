"""Reads Slurm's accounting: `sacct -P` and `sacctmgr show event -P`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.occupancy import BusyPeriod
from malletrain.simulator.traces.pipe_table import parse_pipe_table

SACCT = "sacct -a -X -P -o JobID,Start,End,NodeList,State"
SACCTMGR = "sacctmgr show event -P format=NodeName,TimeStart,TimeEnd,State"
_OUTAGE_COLUMNS = ["node", "from", "until"]
_NOT_STARTED = ("Unknown", "None", "")
_GOING_ON = ("Unknown", "None", "")
_NO_NODES = ("None assigned", "(null)", "None", "")


def parse_sacct(lines: Iterable[Line], calendar: CalendarReader) -> list[BusyPeriod]:
    """Busy periods of jobs.

    Steps (with `.` in JobID), jobs that never started, jobs without nodes and jobs of length 0 are skipped. A job with
    `End` `Unknown` has not ended.

    Args:
        lines: Output of `sacct -P` with at least the columns Start, End and NodeList.
        calendar: Reads the times of the conversion.

    Raises:
        InvalidInputError: a line is malformed; the error names its place and what was expected.
    """
    found: list[BusyPeriod] = []
    for place, row in parse_pipe_table(lines, ("Start", "End", "NodeList"), SACCT):
        no_nodes = row["NodeList"].strip() in _NO_NODES
        if "." in row.get("JobID", "") or row["Start"].strip() in _NOT_STARTED or no_nodes:
            continue
        entry = _busy_period(place, row["NodeList"], row["Start"], row["End"], calendar)
        if entry is not None:
            found.append(entry)
    return found


def parse_outages(lines: Iterable[Line], calendar: CalendarReader) -> list[BusyPeriod]:
    """Periods in which nodes were down.

    Args:
        lines: CSV with the header `node,from,until`, or output of `sacctmgr show event -P` with at least NodeName,
            TimeStart and TimeEnd. Rows without a node are about the cluster and are skipped. An outage whose end is
            empty or `Unknown` has not ended.
        calendar: Reads the times of the conversion.

    Raises:
        InvalidInputError: a line is malformed; the error names its place and what was expected.
    """
    iterator = iter(lines)
    first = next((line for line in iterator if line.text.strip()), None)
    if first is None:
        return []
    if [cell.strip() for cell in first.text.split(",")] == _OUTAGE_COLUMNS:
        rows = _csv_rows(iterator)
    elif "|" in first.text:
        table = parse_pipe_table(itertools.chain([first], iterator), ("NodeName", "TimeStart", "TimeEnd"), SACCTMGR)
        rows = ((place, row["NodeName"], row["TimeStart"], row["TimeEnd"]) for place, row in table)
    else:
        expected = f"the header {','.join(_OUTAGE_COLUMNS)}, or that of `{SACCTMGR}`"
        raise InvalidInputError(first.place, expected, first.text[:80])
    found = [
        _busy_period(place, nodes, begin, end, calendar)
        for place, nodes, begin, end in rows
        if nodes.strip() not in _NO_NODES
    ]
    return [entry for entry in found if entry is not None]


def _csv_rows(lines: Iterable[Line]) -> Iterator[tuple[str, str, str, str]]:
    for place, text in lines:
        if not text.strip():
            continue
        # A node may be a hostlist with commas: the times are the last two columns.
        cells = text.rsplit(",", 2)
        if len(cells) != len(_OUTAGE_COLUMNS):
            raise InvalidInputError(place, f"{','.join(_OUTAGE_COLUMNS)}", text[:80])
        yield place, cells[0], cells[1], cells[2]


def _busy_period(place: str, nodes: str, begin: str, end: str, calendar: CalendarReader) -> BusyPeriod | None:
    from_s = calendar.read(begin, place)
    until_s = None if end.strip() in _GOING_ON else calendar.read(end, place)
    if until_s is not None and until_s < from_s:
        raise InvalidInputError(place, f"an end at or after the start ({begin})", end)
    return None if until_s == from_s else BusyPeriod(place, expand(nodes.strip(), place), from_s, until_s)
