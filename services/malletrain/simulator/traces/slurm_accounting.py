"""Reads Slurm's accounting: `sacct -P`, `sacct --json` and `sacctmgr show event -P`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import MIN_TIME_S, CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.json_values import JsonValue
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, Row, Run, SkippedRow
from malletrain.simulator.traces.text_tables import read_table

SACCT = "sacct -a -X -D -P -o JobID,Start,End,Elapsed,NodeList,State"
SACCTMGR = "sacctmgr show event -P format=NodeName,TimeStart,TimeEnd,State"
_NEEDED = ("Start", "End", "NodeList")
_OPTIONAL = ("JobID", "JobIDRaw", "State", "ElapsedRaw", "Elapsed")
_OUTAGE_COLUMNS = ["node", "from", "until"]
_NO_TIME = frozenset({"Unknown", "None", "N/A", ""})
_NO_NODES = frozenset({"None assigned", "(null)", "None", "N/A", "Unknown", ""})
_WAITING = frozenset(
    {"PENDING", "PD", "REQUEUE_HOLD", "RH", "REQUEUE_FED", "RF", "RESV_DEL_HOLD", "RD", "SPECIAL_EXIT", "SE"}
    | {"REVOKED", "RV"}
)
_HOLDING = frozenset(
    {"RUNNING", "R", "SUSPENDED", "S", "COMPLETING", "CG", "CONFIGURING", "CF", "STOPPED", "ST", "RESIZING", "RS"}
    | {"SIGNALING", "SI", "STAGE_OUT", "SO", "UPDATE_DB"}
)
_ELAPSED = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,6}):)?(\d{1,3}):(\d{1,2})(?:\.\d+)?")
ENDED_WITHOUT_END = "a job that has ended by its state, but has no end: start and Elapsed say when"
BEGUN_WITHOUT_START = "a start before 1990: end and Elapsed say when it was"


_MAX_LISTS, _MAX_LIST_NODES = 65_536, 256
_known_lists: dict[str, tuple[str, ...]] = {}


def nodes_of(expression: str) -> tuple[str, ...]:
    """Nodes of a list, each once.

    Most jobs of a log share a few thousand short lists, which are kept.
    """
    nodes = _known_lists.get(expression)
    if nodes is None:
        nodes = tuple(dict.fromkeys(expand(expression)))
        if len(nodes) <= _MAX_LIST_NODES:
            if len(_known_lists) >= _MAX_LISTS:
                _known_lists.clear()
            _known_lists[expression] = nodes
    return nodes


def read_sacct(lines: Iterable[Line], calendar: CalendarReader, columns: str | None = None) -> Iterator[Row]:
    """Runs of jobs.

    Steps (with `.` in JobID), jobs that never started, jobs without nodes and jobs of length 0 are no runs. A job
    without an end goes on if its state says so. One that has ended by its state, or whose end is before its start or
    whose start is 1970, is told by Elapsed, if that column is there.

    Args:
        lines: Outputs of `sacct -P` with at least the columns Start, End and NodeList.
        calendar: Reads the times of the conversion.
        columns: Names of the columns as `sacct -o` takes them, for outputs without a header; None: they have one.

    Raises:
        InvalidInputError: there is no header, or it lacks a column.
    """
    for row in read_table(lines, _NEEDED, _OPTIONAL, SACCT, columns):
        if isinstance(row, SkippedRow):
            yield row
            continue
        line, (begin, end, nodes, job, raw, state, elapsed_raw, elapsed) = row
        if "." in job or "." in raw:
            yield OtherRow("steps of jobs")
        else:
            yield run_of(line, job or raw, state, (begin, end), elapsed_of(elapsed_raw, elapsed), nodes, calendar)


def run_of(
    line: Line,
    job: str,
    state: str,
    times: tuple[str, str],
    elapsed_s: float | None,
    nodes: str,
    calendar: CalendarReader,
) -> Row:
    """The run that a row of Slurm's accounting tells of.

    Args:
        line: Where the row stands.
        job: The job's identifier.
        state: Its state, in any form of `sacct`; empty if it is not known.
        times: Start and end.
        elapsed_s: Seconds between them; None: not known.
        nodes: Hostlist.
        calendar: Reads the times.
    """
    begin, end = (text.strip() for text in times)
    word = _word_of(state)
    nodes = nodes.strip()
    if begin in _NO_TIME or word in _WAITING:
        return OtherRow("jobs that never started")
    if nodes in _NO_NODES:
        return OtherRow("jobs without nodes")
    try:
        held = nodes_of(nodes)
    except InvalidInputError as error:
        return SkippedRow("a node list that can't be read", error.at(line.place))
    try:
        if end in _NO_TIME:
            return _without_end(line, job, word, calendar.read(begin, line.place), elapsed_s, held)
        from_s, until_s, assumed = calendar.read_interval(begin, end, line.place, elapsed_s)
    except InvalidInputError as error:
        before = error.expected.startswith("an end")
        return SkippedRow("an end before the start" if before else "a time that can't be read", error)
    if from_s < MIN_TIME_S:
        if not elapsed_s or until_s < MIN_TIME_S:
            return SkippedRow("a time before 1990", InvalidInputError(line.place, "times after 1990", begin))
        from_s, assumed = until_s - elapsed_s, BEGUN_WITHOUT_START
    if until_s == from_s:
        return OtherRow("jobs of no length")
    return Run(held, from_s, until_s, line, assumed, job, word in _HOLDING)


def _word_of(state: str) -> str:
    """`CANCELLED` of `CANCELLED by 1000`, `NODE_FAIL` of `NODE_FAIL+`."""
    return state.split(maxsplit=1)[0].rstrip("+").upper() if state.strip() else ""


def is_waiting(state: str) -> bool:
    """Whether a job in this state does not run yet."""
    return _word_of(state) in _WAITING


def has_ended(state: str) -> bool:
    """Whether a job in this state has ended; False if the state is not known."""
    return _word_of(state) not in _HOLDING | _WAITING | {""}


def _without_end(
    line: Line, job: str, word: str, from_s: float, elapsed_s: float | None, nodes: tuple[str, ...]
) -> Row:
    if from_s < MIN_TIME_S:
        return SkippedRow("a time before 1990", InvalidInputError(line.place, "a start after 1990", from_s))
    if not word or word in _HOLDING:
        return Run(nodes, from_s, None, line, "", job)
    if elapsed_s is None:
        expected = "an end, as its state says that it has ended"
        return SkippedRow("a job that has ended without an end", InvalidInputError(line.place, expected, word))
    if elapsed_s == 0:
        return OtherRow("jobs of no length")
    return Run(nodes, from_s, from_s + elapsed_s, line, ENDED_WITHOUT_END, job)


def elapsed_of(raw: str, text: str) -> float | None:
    """Seconds of the columns ElapsedRaw or Elapsed, `[DAYS-][HOURS:]MINUTES:SECONDS`; None if they say none."""
    if raw.isdecimal() and raw.isascii() and len(raw) < 12:
        return float(raw)
    match = _ELAPSED.fullmatch(text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def read_outages(lines: Iterable[Line], calendar: CalendarReader) -> Iterator[Row]:
    """Periods in which nodes were down, as runs.

    Args:
        lines: CSV with the header `node,from,until`, or output of `sacctmgr show event -P` with at least NodeName,
            TimeStart and TimeEnd. Rows without a node are about the cluster and are no outages of nodes. An outage
            whose end is empty or `Unknown` has not ended.
        calendar: Reads the times of the conversion.

    Raises:
        InvalidInputError: there is no header, or it lacks a column.
    """
    iterator = iter(lines)
    first = next((line for line in iterator if line.text.strip()), None)
    if first is None:
        return
    rows: Iterable[tuple[Line, tuple[str, ...]] | SkippedRow]
    if [cell.strip() for cell in first.text.split(",")] == _OUTAGE_COLUMNS:
        rows = _csv_rows(iterator)
    elif "node" in first.text.lower():
        rows = read_table(itertools.chain([first], iterator), ("NodeName", "TimeStart", "TimeEnd"), (), SACCTMGR)
    else:
        expected = f"the header {','.join(_OUTAGE_COLUMNS)}, or that of `{SACCTMGR}`"
        raise InvalidInputError(first.place, expected, first.text[:80])
    for row in rows:
        if isinstance(row, SkippedRow):
            yield row
            continue
        line, (nodes, begin, end) = row
        if nodes.strip() in _NO_NODES:
            yield OtherRow("events of the cluster")
        else:
            yield run_of(line, "", "", (begin, end), None, nodes, calendar)


def _csv_rows(lines: Iterable[Line]) -> Iterator[tuple[Line, tuple[str, ...]] | SkippedRow]:
    for line in lines:
        if not line.text.strip():
            continue
        # A node may be a hostlist with commas: the times are the last two columns.
        cells = line.text.rsplit(",", 2)
        if len(cells) != len(_OUTAGE_COLUMNS):
            error = InvalidInputError(line.place, f"{','.join(_OUTAGE_COLUMNS)}", line.text[:80])
            yield SkippedRow("a row with too few columns", error)
        else:
            yield line, tuple(cells)


JOBS = "jobs"
"""Key of the jobs in the output."""


def read_sacct_json(values: Iterable[JsonValue], calendar: CalendarReader) -> Iterator[Row]:
    """Runs of jobs; their steps are within them.

    Args:
        values: Elements of `jobs`.
        calendar: Reads the times of the conversion: seconds since 1970.
    """
    for line, value in values:
        cells = cells_of(line, value)
        yield cells if isinstance(cells, SkippedRow | OtherRow) else run_of(line, *cells, calendar)


Cells = tuple[str, str, tuple[str, str], float | None, str]
"""Job, state, start and end, elapsed seconds and nodes, as `run_of` takes them."""


def cells_of(line: Line, value: object) -> Cells | SkippedRow | OtherRow:
    """What a job of the JSON says, as `sacct -P` prints it.

    Args:
        line: Where it stands.
        value: An element of `jobs`.
    """
    job = value if isinstance(value, dict) else {}
    time = job.get("time")
    if not isinstance(time, dict) or "start" not in time or "nodes" not in job:
        if job and "job_id" not in job:
            # An object of its own, such as an error or the query's metadata.
            return OtherRow("objects that are no jobs")
        expected = "a job with time.start, time.end and nodes, as `sacct --json` prints it"
        return SkippedRow("a job without times or nodes", InvalidInputError(line.place, expected))
    times = _text(number_of(time["start"])), _text(number_of(time.get("end")))
    elapsed_s = number_of(time.get("elapsed"))
    return str(job.get("job_id", "")), _state(job.get("state")), times, elapsed_s, _nodes(job["nodes"])


def number_of(value: Any) -> float | None:
    """A number, or one as an object that says whether it is set and whether it is infinite (from 23.11 on)."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        return None
    return float(value)


def _text(seconds: float | None) -> str:
    return f"{seconds:.0f}" if seconds else ""


def _state(state: Any) -> str:
    """The base state: a word (to 23.02), or the first of a list, flags after it (from 23.11 on)."""
    current = state.get("current") if isinstance(state, dict) else state
    if isinstance(current, list):
        current = current[0] if current else ""
    return current if isinstance(current, str) else ""


def _nodes(nodes: Any) -> str:
    if isinstance(nodes, list):
        nodes = ",".join(name for name in nodes if isinstance(name, str))
    return nodes if isinstance(nodes, str) else ""
