"""Logs of LSF (and OpenLava): the accounting file `lsb.acct`, and what `bhist -l` and `bacct -l` print."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import date

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.lsf_history import host_names, read_history
from malletrain.simulator.traces.runs import OtherRow, Row, Run, SkippedRow

MAX_JOINED_LINES = 1000
"""A command may have line breaks."""
_RECORD = re.compile(r'"([A-Z_]+)" "[\d.]+" \d')
_TOKEN = re.compile(r'"((?:[^"]|"")*+)"|(\S+)')
_EXPECTED = '"JOB_FINISH" "VERSION" TIME JOB ...'
_EVENT_TIME, _START_TIME, _ASKED_HOSTS = 2, 10, 22
"""Fields of JOB_FINISH. The hosts that were asked for follow the number of them, and then those that were used."""


def read_lsf(lines: Iterable[Line], calendar: CalendarReader, today: date | None = None) -> Iterator[Row]:
    """Runs of jobs.

    Args:
        lines: One or more files, each either `lsb.acct`, of which JOB_FINISH records count, or the output of
            `bhist -l` or `bacct -l`.
        calendar: Reads the times of the conversion.
        today: No time is later; by default the present day. For outputs that do not tell the year.
    """
    for _, of_file in itertools.groupby(lines, key=lambda line: line.file):
        texts = itertools.dropwhile(lambda line: not line.text.strip(), of_file)
        first = next(texts, None)
        if first is None:
            continue
        whole = itertools.chain([first], texts)
        if first.text.lstrip().startswith(('"', "#")):
            yield from _accounting_rows(whole, calendar)
        else:
            yield from read_history(whole, calendar, today or date.today())


def _accounting_rows(lines: Iterable[Line], calendar: CalendarReader) -> Iterator[Row]:
    for line, text in _records(lines):
        found = _RECORD.match(text)
        if found is None:
            yield SkippedRow("no record of LSF", InvalidInputError(line.place, _EXPECTED, text[:80]))
        elif found[1] != "JOB_FINISH":
            yield OtherRow("records of other types")
        else:
            yield _finished(line, text, calendar)


def _records(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Records with their first lines. A quote within quotes is written twice: a record ends where they are balanced."""
    begin: Line | None = None
    parts: list[str] = []
    quotes = 0
    for line in lines:
        begins = _RECORD.match(line.text) is not None
        if begin is not None and (begins or len(parts) >= MAX_JOINED_LINES):
            # Damaged: a user can't begin a line like this, since his quotes are doubled.
            yield begin, " ".join(parts)
            begin = None
        if begin is None:
            if not line.text.strip() or line.text.startswith("#"):
                continue
            begin, parts, quotes = line, [], 0
        parts.append(line.text)
        quotes += line.text.count('"')
        if quotes % 2 == 0:
            yield begin, " ".join(parts)
            begin = None
    if begin is not None:
        yield begin, " ".join(parts)


def _finished(line: Line, text: str, calendar: CalendarReader) -> Row:
    fields = (found[1] if found[2] is None else found[2] for found in _TOKEN.finditer(text))
    head = list(itertools.islice(fields, _ASKED_HOSTS))
    try:
        # What users choose is quoted, and can't move a field.
        asked = _number(fields)
        list(itertools.islice(fields, asked))
        hosts = list(itertools.islice(fields, _number(fields)))
        start, event = head[_START_TIME], head[_EVENT_TIME]
        if start == "0":
            return OtherRow("jobs that never started")
        start_s, end_s = calendar.read(start, line.place), calendar.read(event, line.place)
    except (IndexError, ValueError):
        return SkippedRow("a record that lacks something", InvalidInputError(line.place, _EXPECTED, text[:80]))
    except InvalidInputError as error:
        return SkippedRow("a time that is none", error)
    return _run(line, hosts, start_s, end_s)


def _number(fields: Iterator[str]) -> int:
    """The next field, a number of hosts.

    Raises:
        ValueError: it is none.
    """
    text = next(fields, "")
    if not re.fullmatch(r"\d{1,7}", text):
        raise ValueError(text)
    return int(text)


def _run(line: Line, hosts: list[str], start_s: float, end_s: float) -> Row:
    nodes = host_names(hosts)
    if nodes is None:
        got = " ".join(hosts)[:80]
        return SkippedRow("a job whose record names no node", InvalidInputError(line.place, "names of hosts", got))
    if end_s < start_s:
        error = InvalidInputError(line.place, f"an end at or after the start ({start_s:.0f})", f"{end_s:.0f}")
        return SkippedRow("an end before the start", error)
    return OtherRow("jobs of no length") if end_s == start_s else Run(nodes, start_s, end_s, line)
