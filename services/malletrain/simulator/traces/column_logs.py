"""Reads logs of jobs of any shape whose columns the user names: CSV, Parquet and JSON."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import MAX_TIME_S, MIN_TIME_S, CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.json_values import JsonValue
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, Row, Run, SkippedRow
from malletrain.simulator.traces.slurm_accounting import elapsed_of, has_ended, is_waiting, nodes_of

START, END, DURATION = "start", "end", "duration"
NODES, NODE_COUNT, SLOTS = "nodes", "node_count", "slots"
JOB, STATE = "job", "state"
FIELDS = (START, END, DURATION, NODES, NODE_COUNT, SLOTS, JOB, STATE)
MAX_AMOUNT = 10**9
_DELIMITERS = ",;\t|"
_NOTHING = frozenset({"", "nan", "nat", "none", "null", "unknown", "n/a", "na", "0", "0.0", "-1", "none assigned"})
_NUMBER = re.compile(r"-?\d{1,15}(\.\d*)?([eE]\+?\d{1,2})?")
_DAYS = re.compile(r"(\d{1,6}) days?,? ?(?:\+?(\d{1,2}:\d\d:\d\d(?:\.\d+)?))?")
_MILLISECONDS_FROM = 1e11
"""Seconds of the year 5138: so large a number is milliseconds, and a million times that nanoseconds."""
_CALENDAR_FROM = 1e8
_NUMBERS = re.compile(r"\d{1,9}(-\d{1,9})?")
_LIST_ENDS = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class ColumnNames:
    """Which column of a table holds what.

    Attributes:
        names: Column of each of `FIELDS` that there is.
    """

    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_nodes(self) -> bool:
        """Whether the log says which nodes a job had, and not only how many."""
        return NODES in self.names

    @property
    def counts_slots(self) -> bool:
        """Whether the log says how many slots a job had."""
        return SLOTS in self.names


def parse_columns(texts: Sequence[str]) -> ColumnNames:
    """Columns from `FIELD=NAME`.

    Raises:
        InvalidInputError: a field is not known or named twice, or one is missing.
    """
    names: dict[str, str] = {}
    for text in texts:
        what, separator, name = text.partition("=")
        if not separator or what not in FIELDS or not name:
            raise InvalidInputError("--column", f"FIELD=NAME with one of {', '.join(FIELDS)}", text)
        if what in names:
            raise InvalidInputError("--column", f"{what} once", text)
        names[what] = name
    if START not in names or not {END, DURATION} & names.keys():
        raise InvalidInputError("--column", "start=NAME, and end=NAME or duration=NAME")
    amounts = sorted({NODES, NODE_COUNT, SLOTS} & names.keys())
    if len(amounts) != 1:
        raise InvalidInputError("--column", "one of nodes=NAME, node_count=NAME and slots=NAME", ", ".join(amounts))
    return ColumnNames(names)


def csv_rows(lines: Iterable[Line], columns: ColumnNames) -> Iterator[tuple[Line, dict[str, object]] | SkippedRow]:
    """Rows of CSV files with a header, as field → cell. The delimiter is a comma, semicolon, tab or pipe.

    Raises:
        InvalidInputError: there is no header, or it lacks a column.
    """
    by_file = _ByFile(lines)
    for first in by_file.headers():
        delimiter = max(_DELIMITERS, key=first.text.count)
        header = [name.strip() for name in next(csv.reader([first.text], delimiter=delimiter), [])]
        positions = _positions(header, columns, first.place)
        reader = csv.reader(by_file.texts(), delimiter=delimiter)
        while True:
            begin = by_file.next_number()
            line = Line(first.file, begin, "")
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield SkippedRow("a row that is no CSV", InvalidInputError(line.place, f"CSV ({error})"))
                continue
            if cells is None:
                break
            if not any(cells):
                continue
            if len(cells) != len(header):
                expected = f"{len(header)} columns, as in the header"
                yield SkippedRow("another number of columns", InvalidInputError(line.place, expected, len(cells)))
                continue
            values: dict[str, object] = {name: cells[position] for name, position in positions.items()}
            yield line, values


class _ByFile:
    """Lines of several files, for a reader that wants one file at a time."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)
        self._next: Line | None = next(self._lines, None)
        self._file = ""
        self._last = 0

    def headers(self) -> Iterator[Line]:
        """The first line of each file that is not empty."""
        while self._next is not None:
            line = self._next
            self._next = next(self._lines, None)
            if line.text.strip():
                self._file, self._last = line.file, line.number
                yield line

    def texts(self) -> Iterator[str]:
        """The lines of this file, with their ends."""
        while self._next is not None and self._next.file == self._file:
            self._last = self._next.number
            text = self._next.text
            self._next = next(self._lines, None)
            yield f"{text}\n"

    def next_number(self) -> int:
        """Number of the line that comes next."""
        return self._last + 1


def parquet_rows(path: Path, columns: ColumnNames) -> Iterator[tuple[Line, dict[str, object]]]:
    """Rows of a Parquet file, as field → value. PyArrow is imported only here.

    Raises:
        InvalidInputError: PyArrow is missing, or the file is not Parquet or lacks a column.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InvalidInputError(str(path), "CSV, or pyarrow for Parquet (it is not installed)") from error
    try:
        with parquet.ParquetFile(path) as file:
            positions = _positions(file.schema_arrow.names, columns, str(path))
            names = {what: file.schema_arrow.names[position] for what, position in positions.items()}
            number = 0
            for batch in file.iter_batches(columns=sorted(set(names.values()))):
                # Python's times have microseconds: what is finer is cut off.
                fields = [
                    field.with_type(pyarrow.timestamp("us", field.type.tz))
                    if str(field.type).startswith("timestamp[ns")
                    else field
                    for field in batch.schema
                ]
                table = pyarrow.Table.from_batches([batch]).cast(pyarrow.schema(fields), safe=False)
                for row in table.to_pylist():
                    number += 1
                    yield Line(str(path), number, "", ": row "), {what: row[name] for what, name in names.items()}
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInputError(str(path), f"a readable Parquet file ({error})") from error


def json_rows(values: Iterable[JsonValue], columns: ColumnNames) -> Iterator[tuple[Line, dict[str, object]]]:
    """Rows of JSON objects, as field → value.

    A name is a path of keys, such as `attempts.start_time`. Where the path of the start leads through a list, each of
    its elements is a row. Other lists give a list of values.
    """
    paths = {what: name.split(".") for what, name in columns.names.items()}
    for line, value in values:
        shared, parts = _parts(value, paths[START])
        for part in parts:
            row: dict[str, object] = {}
            for what, path in paths.items():
                inside = path[: len(shared)] == shared
                row[what] = _value_at(part if inside else value, path[len(shared) :] if inside else path)
            yield line, row


def _parts(value: object, path: Sequence[str]) -> tuple[list[str], list[object]]:
    """The keys that lead to the first list on a path, and its elements; no keys and the value itself without one."""
    inner = value
    for depth, key in enumerate(path, 1):
        inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, list):
            return list(path[:depth]), inner
    return [], [value]


def _value_at(value: object, path: Sequence[str]) -> object:
    for depth, key in enumerate(path):
        if isinstance(value, list):
            inner = (_value_at(element, path[depth:]) for element in value)
            return [entry for entry in inner if entry is not None]
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _positions(header: Sequence[str], columns: ColumnNames, place: str) -> dict[str, int]:
    positions: dict[str, int] = {}
    for what, name in columns.names.items():
        if name not in header:
            raise InvalidInputError(place, f"a column {name} (--column {what}={name})", ", ".join(header)[:150])
        positions[what] = header.index(name)
    return positions


def read_columns(
    rows: Iterable[tuple[Line, dict[str, object]] | SkippedRow], calendar: CalendarReader
) -> Iterator[Row]:
    """Runs of jobs.

    A time is ISO 8601, or a number: seconds, milliseconds or nanoseconds since 1970, or seconds since any begin if it
    is small. A duration is seconds, `[D-]HH:MM:SS` or `N days HH:MM:SS`. Nodes are a hostlist, or names between commas,
    blanks, semicolons or plus signs, in brackets and quotes or not. A job without a start never ran; one without an end
    goes on, unless its state says that it has ended.

    Args:
        rows: From `csv_rows`, `parquet_rows` or `json_rows`.
        calendar: Reads the times of the conversion.
    """
    for row in rows:
        if isinstance(row, SkippedRow):
            yield row
            continue
        line, values = row
        try:
            yield _row(line, values, calendar)
        except InvalidInputError as error:
            before = error.expected.startswith("an end")
            yield SkippedRow("an end before the start" if before else "a value that can't be read", error)


def _row(line: Line, values: Mapping[str, object], calendar: CalendarReader) -> Row:
    state = str(values.get(STATE) or "")
    begin, end = (_time_text(values.get(name)) for name in (START, END))
    if not begin or is_waiting(state):
        return OtherRow("jobs that never started")
    nodes, slots = _amounts(values, line)
    if not nodes and not slots:
        return OtherRow("jobs without nodes")
    from_s = _time(begin, line, calendar)
    if calendar.has_calendar and not MIN_TIME_S <= from_s <= MAX_TIME_S:
        return _wrong_clock(line, begin)
    length_s = _length(values.get(DURATION), line)
    assumed, until_s = "", None
    if end and _NUMBER.fullmatch(end):
        until_s = _time(end, line, calendar)
        if until_s < from_s:
            raise InvalidInputError(line.place, f"an end at or after the start ({begin})", end)
    elif end:
        from_s, until_s, assumed = calendar.read_interval(begin, end, line.place, length_s)
    elif length_s is not None:
        until_s = from_s + length_s
    elif has_ended(state):
        expected = "an end, as its state says that it has ended"
        return SkippedRow("a job that has ended without an end", InvalidInputError(line.place, expected, state))
    if calendar.has_calendar and until_s is not None and until_s > MAX_TIME_S:
        return _wrong_clock(line, end or str(values.get(DURATION)))
    if until_s == from_s:
        return OtherRow("jobs of no length")
    return Run(nodes, from_s, until_s, line, assumed, str(values.get(JOB) or ""), slots=slots)


def _wrong_clock(line: Line, text: str) -> SkippedRow:
    return SkippedRow("a time before 1990 or after 2100", InvalidInputError(line.place, "times of a right clock", text))


def _time_text(value: object) -> str:
    """A time as text; empty where there is none."""
    if isinstance(value, datetime):
        return value.isoformat()
    text = "" if value is None else str(value).strip()
    return "" if text.lower() in _NOTHING else text.replace("/", "-")


def _time(text: str, line: Line, calendar: CalendarReader) -> float:
    if not _NUMBER.fullmatch(text):
        return calendar.read(text, line.place)
    number = float(text)
    while number > _MILLISECONDS_FROM:
        number /= 1000.0
    return (
        calendar.read(f"{number:.3f}", line.place)
        if number >= _CALENDAR_FROM
        else calendar.read_seconds(number, line.place)
    )


def _length(value: object, line: Line) -> float | None:
    text = "" if value is None else str(value).strip()
    if text.lower() in _NOTHING - {"0", "0.0"}:
        return None
    if _NUMBER.fullmatch(text):
        seconds: float | None = float(text)
    elif days := _DAYS.fullmatch(text):
        seconds = int(days[1]) * 86400.0 + (elapsed_of("", days[2] or "00:00") or 0.0)
    else:
        seconds = elapsed_of("", text)
    if seconds is None or not 0 <= seconds < 1e11:
        raise InvalidInputError(line.place, "a duration in seconds or as [D-]HH:MM:SS", text)
    return seconds


def _amounts(values: Mapping[str, object], line: Line) -> tuple[tuple[str, ...], int]:
    """Names of nodes, or how many nodes or slots."""
    if NODES in values:
        return _names(values[NODES], line), 0
    text = str(values.get(NODE_COUNT, values.get(SLOTS)) or "").strip()
    if text.lower() in _NOTHING:
        return (), 0
    number = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 < number <= MAX_AMOUNT or not number.is_integer():
        raise InvalidInputError(line.place, f"a whole number of nodes or slots, at most {MAX_AMOUNT}", text)
    return (), int(number)


def _names(value: object, line: Line) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(dict.fromkeys(str(name) for name in value if name is not None and str(name)))
    text = "" if value is None else str(value).strip()
    if text.lower() in _NOTHING - {"0", "-1"}:
        return ()
    if text[0] in _LIST_ENDS and text.endswith(_LIST_ENDS[text[0]]):
        words = re.split(r"[,\s]+", text[1:-1])
    elif "+" in text or "/" in text:
        words = re.split(r"[,;+|\s]+", text)
    else:
        try:
            return nodes_of(text)
        except InvalidInputError as error:
            words = re.split(r"[,;|\s]+", text)
            if len(words) == 1 or any("[" in word or "]" in word for word in words):
                raise error.at(line.place) from error
    if all(_NUMBERS.fullmatch(word) for word in words) and any("-" in word for word in words):
        # Numbers of nodes and ranges of them; a hostlist needs a letter.
        return tuple(name[1:] for name in expand(f"n[{','.join(words)}]", line.place))
    names = (word.strip("'\"").split("/", 1)[0] for word in words)
    return tuple(dict.fromkeys(name for name in names if name and name.lower() not in ("none", "nan")))
