"""Logs of LSF (and OpenLava): the accounting file `lsb.acct`, and what `bhist -l` and `bacct -l` print."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, Row, Run, SkippedRow

ASSUMED_YEAR = "times without a year (LSB_DISPLAY_YEAR=Y): taken as the latest in which the days of the week are right"
MAX_EVENT_CHARACTERS = 16 * 1024 * 1024
"""More than the hosts of any job."""

_JOB = re.compile(r"\s{0,9}Job <(\d+(?:\[\d+\])?)>")
_EVENT = re.compile(
    r"\s{0,9}(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?: (\d{4}))?:\s?(.*)", re.DOTALL
)
_STAMP = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?: (\d{4}))?")
_SUMMARY = re.compile(r"\s{0,9}Summary of time in seconds spent in various states by\s+(.*)")
_CONTINUED = " " * 12
_BEGUN = re.compile(r"(?:\[\d+\]\s*)?(?:dispatched|started)\b", re.IGNORECASE)
_ENDED = re.compile(
    r"(?:\[\d+\]\s*)?(?:done successfully|exited|completed\s*<|terminated|pending|job (?:has been|is being) requeued)",
    re.IGNORECASE,
)
_ALLOCATED = re.compile(r"Allocated\d+Slot\(s\)onHost\(s\)", re.IGNORECASE)
_HOSTS = re.compile(r"(?:<[^<>]*>)+")
_HOST = re.compile(r"<([^<>]*)>")
_NAME = re.compile(r"(?:\d{1,7}\*)?([A-Za-z0-9][\w.@-]{0,254})")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_YEARS_APART = 41
"""Within so many years each day of the year falls on each day of the week, the 29th of February, too."""


class _Event(NamedTuple):
    """An event of a job."""

    line: Line
    stamp: str
    text: str


@dataclass
class _Job:
    """What is told of one job.

    Attributes:
        name: Its number.
        events: In the order of time.
        until: A time with its year, after all events.
    """

    name: str
    events: list[_Event] = field(default_factory=list)
    until: datetime | None = None


def read_history(lines: Iterable[Line], calendar: CalendarReader, today: date) -> Iterator[Row]:
    """Runs of jobs: from each `Dispatched` or `Started` to the next event that ends it.

    Args:
        lines: One file.
        calendar: Reads the times of the conversion.
        today: No time is later.
    """
    years = _Years(today)
    first: Line | None = None
    has_jobs = False
    for job in _jobs(lines):
        if isinstance(job, Line):
            first = first or job
            continue
        has_jobs = True
        yield from _runs(job, years, calendar)
    if not has_jobs and first is not None:
        expected = "jobs, as `bhist -l` and `bacct -l` print them, or a file lsb.acct"
        yield SkippedRow("no output of LSF", InvalidInputError(first.place, expected, first.text.strip()[:80]))


def host_names(hosts: Iterable[str]) -> tuple[str, ...] | None:
    """Names, each once, of hosts such as `16*host1`; None if there is none, or one that can't be read."""
    names: dict[str, None] = {}
    for host in hosts:
        match = _NAME.fullmatch(host)
        if match is None:
            return None
        names[match[1]] = None
    return tuple(names) or None


def _jobs(lines: Iterable[Line]) -> Iterator[_Job | Line]:
    """Jobs with their events, and other lines."""
    job: _Job | None = None
    for line, text in _join_continued(lines):
        if match := _JOB.match(text):
            if job is not None:
                yield job
            job = _Job(match[1])
        elif job is not None and (event := _EVENT.fullmatch(text)):
            stamp = _STAMP.search(text)
            if stamp:
                job.events.append(_Event(line, stamp[0], event[3]))
        elif job is not None and (summary := _SUMMARY.match(text)):
            stamp = _STAMP.search(summary[1])
            job.until = _moment(stamp, int(stamp[7])) if stamp and stamp[7] else None
        else:
            yield line
    if job is not None:
        yield job


def _join_continued(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Lines with those that continue them."""
    begin: Line | None = None
    parts: list[str] = []
    size = 0
    for line in lines:
        text = line.text
        if begin is not None and text.startswith(_CONTINUED) and text.strip() and size < MAX_EVENT_CHARACTERS:
            parts.append(text)
            size += len(text)
            continue
        if begin is not None:
            yield begin, "".join(parts)
        begin, parts, size = line, [text], 0
    if begin is not None:
        yield begin, "".join(parts)


def _runs(job: _Job, years: _Years, calendar: CalendarReader) -> Iterator[Row]:
    begun: tuple[_Event, str, tuple[str, ...]] | None = None
    any_run = False
    moments = years.of(job)
    for event, moment in zip(job.events, moments, strict=True):
        starts = _BEGUN.match(event.text) is not None
        if not starts and (begun is None or _ENDED.match(event.text) is None):
            continue
        if moment is None:
            error = InvalidInputError(event.line.place, "a time such as Mon Oct  8 17:08:44 2012", event.stamp)
            yield SkippedRow("a time that is none", error)
            continue
        if begun is not None:
            yield _run(job.name, begun, moment, years, calendar)
            begun = None
        if starts:
            any_run = True
            nodes = _nodes(event.text)
            if nodes is None:
                error = InvalidInputError(event.line.place, "Dispatched to <HOST>...", event.text[:80])
                yield SkippedRow("a job whose record names no node", error)
            else:
                begun = event, moment, nodes
    if begun is not None:
        event, moment, nodes = begun
        try:
            yield Run(nodes, calendar.read(moment, event.line.place), None, event.line, years.assumed, job.name)
        except InvalidInputError as error:
            yield SkippedRow("a time that is none", error)
    if not any_run:
        yield OtherRow("jobs that never started")


def _run(
    name: str, begun: tuple[_Event, str, tuple[str, ...]], end: str, years: _Years, calendar: CalendarReader
) -> Row:
    event, start, nodes = begun
    try:
        from_s, until_s, assumed = calendar.read_interval(start, end, event.line.place)
    except InvalidInputError as error:
        return SkippedRow("a time that is none, or an end before the start", error)
    if until_s == from_s:
        return OtherRow("jobs of no length")
    return Run(nodes, from_s, until_s, event.line, assumed or years.assumed, name)


def _nodes(text: str) -> tuple[str, ...] | None:
    """Hosts of `Dispatched 2 Task(s) on Host(s) <h1> <h2>, Allocated 2 Slot(s) on Host(s) <2*h1>`, and other forms."""
    # LSF breaks lines within words, and indents by the width of its times.
    packed = "".join(text.split())
    allocated = _ALLOCATED.search(packed)
    place = allocated.end() if allocated else packed.find("<")
    listed = _HOSTS.match(packed, place) if place >= 0 else None
    return host_names(_HOST.findall(listed[0])) if listed else None


class _Years:
    """Finds the years of times that have none, by the days of the week.

    Attributes:
        assumed: What was assumed; empty if all times so far had a year.
    """

    def __init__(self, today: date) -> None:
        self._latest = datetime(today.year, today.month, today.day, 23, 59, 59)
        self._near: datetime | None = None
        self.assumed = ""

    def of(self, job: _Job) -> list[str | None]:
        """The times of a job's events in the form of ISO 8601; None of those that are none."""
        times: list[str | None] = []
        near = job.until or self._near
        for event in job.events:
            stamp = _STAMP.fullmatch(event.stamp)
            moment = None if stamp is None else self._resolved(stamp, near, known=job.until is not None)
            if moment is not None:
                near = self._near = moment
            times.append(None if moment is None else moment.isoformat())
        return times

    def _resolved(self, stamp: re.Match[str], near: datetime | None, *, known: bool) -> datetime | None:
        if stamp[7]:
            return _moment(stamp, int(stamp[7]))
        if not known:
            self.assumed = ASSUMED_YEAR
        if near is None:
            years = range(self._latest.year, self._latest.year - _YEARS_APART, -1)
            return next((moment for year in years if (moment := self._past(stamp, year)) is not None), None)
        # The same day of the year is the same day of the week no earlier than five years later.
        around = (near.year + distance for distance in (0, -1, 1, -2, 2, -3, 3))
        return next((moment for year in around if (moment := _moment(stamp, year)) is not None), None)

    def _past(self, stamp: re.Match[str], year: int) -> datetime | None:
        moment = _moment(stamp, year)
        return moment if moment is not None and moment <= self._latest else None


def _moment(stamp: re.Match[str], year: int) -> datetime | None:
    """A time in a year; None if there is no such day, or it is another day of the week."""
    try:
        month = _MONTHS.index(stamp[2]) + 1
        moment = datetime(year, month, int(stamp[3]), int(stamp[4]), int(stamp[5]), int(stamp[6]))
    except ValueError:
        return None
    return moment if moment.weekday() == _DAYS.index(stamp[1]) else None


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
        match = _RECORD.match(text)
        if match is None:
            yield SkippedRow("no record of LSF", InvalidInputError(line.place, _EXPECTED, text[:80]))
        elif match[1] != "JOB_FINISH":
            yield OtherRow("records of other types")
        else:
            yield _finished_row(line, text, calendar)


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


def _finished_row(line: Line, text: str, calendar: CalendarReader) -> Row:
    fields = (match[1] if match[2] is None else match[2] for match in _TOKEN.finditer(text))
    head = list(itertools.islice(fields, _ASKED_HOSTS))
    try:
        # What users choose is quoted, and can't move a field.
        count = _number(fields)
        list(itertools.islice(fields, count))
        hosts = list(itertools.islice(fields, _number(fields)))
        start, event = head[_START_TIME], head[_EVENT_TIME]
        if start == "0":
            return OtherRow("jobs that never started")
        start_s, end_s = calendar.read(start, line.place), calendar.read(event, line.place)
    except (IndexError, ValueError):
        return SkippedRow("a record that lacks something", InvalidInputError(line.place, _EXPECTED, text[:80]))
    except InvalidInputError as error:
        return SkippedRow("a time that is none", error)
    return _accounted_run(line, hosts, start_s, end_s)


def _number(fields: Iterator[str]) -> int:
    """The next field, a number of hosts.

    Raises:
        ValueError: it is none.
    """
    text = next(fields, "")
    if not re.fullmatch(r"\d{1,7}", text):
        raise ValueError(text)
    return int(text)


def _accounted_run(line: Line, hosts: list[str], start_s: float, end_s: float) -> Row:
    nodes = host_names(hosts)
    if nodes is None:
        got = " ".join(hosts)[:80]
        return SkippedRow("a job whose record names no node", InvalidInputError(line.place, "names of hosts", got))
    if end_s < start_s:
        error = InvalidInputError(line.place, f"an end at or after the start ({start_s:.0f})", f"{end_s:.0f}")
        return SkippedRow("an end before the start", error)
    return OtherRow("jobs of no length") if end_s == start_s else Run(nodes, start_s, end_s, line)
