"""Reads accounting logs of PBS Pro, OpenPBS and Torque: `MM/DD/YYYY HH:MM:SS;TYPE;ID;key=value ...`."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import MAX_TIME_S, MIN_TIME_S, CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, Recorded, Row, Run, SkippedRow

_QUARTER_S = 900.0
_MAX_DELAY_S = 120.0
_MAX_OFFSET_S = 15 * 3600.0
_REMEMBERED = 5


class LogClock:
    """Learns how far local time is from UTC, and follows changes of the clock."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=_REMEMBERED)

    @staticmethod
    def local_seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
        """A time of day as seconds since 1970, as if it were in UTC.

        Raises:
            ValueError: there is no such time.
        """
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()

    def learn(self, local_s: float, time_s: float) -> None:
        """A record of this local time tells of something that happened at this time, or shortly before."""
        offset_s = round((local_s - time_s) / _QUARTER_S) * _QUARTER_S
        # Records that were written late tell nothing.
        if abs(offset_s) <= _MAX_OFFSET_S and abs(local_s - time_s - offset_s) <= _MAX_DELAY_S:
            self._offsets.append(offset_s)

    def seconds(self, local_s: float) -> float | None:
        """Seconds since 1970 of a record of this local time; None if no record has told yet."""
        if not self._offsets:
            return None
        (offset_s, _), *_ = Counter(self._offsets).most_common(1)
        return local_s - offset_s


_RECORD = re.compile(
    # `grep` and syslog put something before.
    r"(?:[^;]{0,200}[\s:])?(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)(?:\.\d+)?;([A-Za-z]);([^;]*);(.*)",
    re.DOTALL,
)
_EXPECTED = "a record MM/DD/YYYY HH:MM:SS;TYPE;ID;..."
_LISTED = " Resource_List."
"""What users choose freely comes behind it, or before the start: names of jobs, accounts."""
_START = re.compile(r"(?:^|\s)start=(\S*)")
_END = re.compile(r"(?:^|\s)end=(\S*)")
_HOSTS = re.compile(r"(?:^|\s)exec_host=(\S*)")
_VNODES = re.compile(r"(?:^|\s)exec_vnode=(\S*)")
_LIMIT = re.compile(r"\sResource_List\.walltime=(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})(?:\.\d+)?(?:\s|$)")
_COUNT = re.compile(r"\sResource_List\.nodect=(\d{1,6})(?:\s|$)")
_TIME = re.compile(r"\d{1,11}(?:\.\d{1,9})?")
_NUMBERS = re.compile(r'"(\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*)"')
"""Nodes by number, as in logs of Cobalt, which are like those of PBS otherwise."""
_VNODE = re.compile(r"[(+]([^:()+\s]+)")
_PART_OF_HOST = re.compile(r"\[\d+\]$")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,254}")
_PORT = re.compile(r":\d+$")
_ARRAY = re.compile(r"\d+\[\]")
_SLOT = re.compile(r"\d+")
_MIN_DIGITS = 9
MAX_JOINED_LINES = 20
"""A user's line breaks may tear a record apart."""

ABORTED = "aborted by the server (A), and without an end: taken as ended then"
DELETED = "deleted (D), and without an end: taken as ended then"
STARTED_AGAIN = "started again without an end: taken as ended when it was queued again, or else at its next start"
REPLACED = "without an end, and its places were given to another job: taken as ended then"
BEYOND_LIMIT = "without an end, and beyond its time limit: taken as ended then"
END_OF_RECORD = "an end without a time: taken as that of its record"


class _Record(NamedTuple):
    """A record of a type that counts.

    Attributes:
        kind: Its type.
        job: The job's identifier.
        message: The rest.
        local_s: Its time, in seconds since 1970 of the log's local time.
    """

    line: Line
    kind: str
    job: str
    message: str
    local_s: float


@dataclass
class _OpenRun:
    """A run that has not ended.

    Attributes:
        line: Of its start.
        start_s: When the job started.
        from_s: Since when it has these nodes: later, where it has given some back.
        slots: The first place that it has on each host.
        limit_s: When its time limit passes; None if that is not known.
        gone_s: When it was aborted or deleted, or its places were given to another job; None if nothing tells that.
        why: Which of these.
        requeued_s: When it was queued again or checkpointed, which only counts if it starts again.
        has_given_back: Whether it has given back nodes.
    """

    line: Line
    nodes: tuple[str, ...]
    start_s: float
    from_s: float
    slots: tuple[tuple[str, str], ...]
    limit_s: float | None
    gone_s: float | None = None
    why: str = ""
    requeued_s: float | None = None
    has_given_back: bool = False

    def note_end(self, time_s: float, why: str) -> None:
        """The run had ended by this time; what is first counts."""
        if self.gone_s is None or time_s < self.gone_s:
            self.gone_s, self.why = max(time_s, self.from_s), why

    def run(self, until_s: float | None, line: Line | None = None, assumed: str = "") -> Run | OtherRow:
        """The run, which ends at this time."""
        if until_s is not None and until_s <= self.from_s:
            return OtherRow("jobs of no length")
        return Run(self.nodes, self.from_s, until_s, line or self.line, assumed)


def read_pbs(lines: Iterable[Line], calendar: CalendarReader) -> Iterator[Row | Recorded]:
    """Runs of jobs.

    An `E` record (ended) or `R` record (rerun) describes a whole run, from its `start=` to its `end=`. An `R` record
    without these ends the run that the last `S` record (started) began, at its own time. So does an `A` record
    (aborted) or a `D` record (deleted), if no other follows. Nodes are the hosts of `exec_host=`, or of `exec_vnode=`
    if there is none; `s` and `c` records say which a job keeps. Of a job without an end it is asked whether its places
    were given to another one, or its time limit has passed. Job arrays hold no nodes as a whole: each task has records
    of its own.

    Args:
        lines: One or more logs, in the order of time.
        calendar: Reads the times of the conversion; those of PBS are seconds since 1970.
    """
    reader = _PbsReader(calendar)
    for record in _records(lines):
        if isinstance(record, _Record):
            yield from reader.rows(record)
        else:
            yield record
    yield from reader.rest()


def _records(lines: Iterable[Line]) -> Iterator[_Record | SkippedRow]:
    """Records, joined where a line break within a name has torn one apart."""
    last: _Record | None = None
    joined = 0
    for line in lines:
        if not line.text.strip():
            continue
        match = _RECORD.fullmatch(line.text)
        if match is None:
            if last is not None and _is_torn(last) and joined < MAX_JOINED_LINES:
                joined += 1
                last = last._replace(message=f"{last.message} {line.text}")
            else:
                yield SkippedRow("no record of PBS", InvalidInputError(line.place, _EXPECTED, line.text[:80]))
            continue
        if last is not None:
            yield last
        month, day, year, hour, minute, second, kind, job, message = match.groups()
        try:
            local_s = LogClock.local_seconds(int(year), int(month), int(day), int(hour), int(minute), int(second))
        except ValueError:
            last = None
            yield SkippedRow("no record of PBS", InvalidInputError(line.place, _EXPECTED, line.text[:80]))
            continue
        last, joined = _Record(line, kind, job, message, local_s), 0
    if last is not None:
        yield last


def _is_torn(record: _Record) -> bool:
    return record.message.count('"') % 2 == 1 or (record.kind in "SE" and not _START.search(record.message))


@dataclass
class _PbsReader:
    """Follows the jobs of a log.

    Attributes:
        calendar: Reads the times of the conversion.
        clock: Local time of the log.
        open_runs: Runs that have not ended, by job.
        holders: Who has each place.
        starts: How many starts are recorded.
        ends: How many ends of jobs of which the start is not.
        first_s: Time of the first start or end that is recorded.
        last_s: That of the last.
    """

    calendar: CalendarReader
    clock: LogClock = field(default_factory=LogClock)
    open_runs: dict[str, _OpenRun] = field(default_factory=dict)
    holders: dict[tuple[str, str], str] = field(default_factory=dict)
    starts: int = 0
    ends: int = 0
    first_s: float | None = None
    last_s: float = 0.0

    def rows(self, record: _Record) -> Iterator[Row]:
        """What a record comes to."""
        if _ARRAY.match(record.job):
            yield OtherRow("job arrays as a whole")
            return
        try:
            match record.kind:
                case "S":
                    yield from self._started(record)
                case "s" | "c":
                    yield from self._shrink(record)
                case "E" | "R":
                    yield from self._ended(record)
                case "A" | "D":
                    self._note_gone(record)
                    yield OtherRow("records of deleted and aborted jobs")
                case "Q" | "C":
                    if (run := self.open_runs.get(record.job)) and run.requeued_s is None:
                        run.requeued_s = self.clock.seconds(record.local_s)
                    yield OtherRow("records of other types")
                case _:
                    yield OtherRow("records of other types")
        except _UnusableError as error:
            yield error.row

    def rest(self) -> Iterator[Row | Recorded]:
        """The runs that have not ended, and what the log records."""
        for run in self.open_runs.values():
            if run.limit_s is not None and run.limit_s < self.last_s:
                run.note_end(run.limit_s, BEYOND_LIMIT)
            yield run.run(run.gone_s, assumed=run.why)
        # In a log of ends only, jobs that still ran at its end are missing.
        if self.first_s is not None and self.starts >= self.ends:
            yield Recorded(self.first_s, self.last_s)

    def _started(self, record: _Record) -> Iterator[Row]:
        start_s = _time(record, _START, "start", self.calendar)
        self._happened(record, start_s)
        before = self.open_runs.get(record.job)
        if before is not None and before.start_s != start_s:
            self._free(record.job, self.open_runs.pop(record.job))
            if before.gone_s is not None:
                yield before.run(min(before.gone_s, start_s), assumed=before.why)
            else:
                until_s = start_s if before.requeued_s is None else min(before.requeued_s, start_s)
                yield before.run(until_s, assumed=STARTED_AGAIN)
        self.starts += 1
        nodes, slots = _places(record)
        limit = _LIMIT.search(record.message)
        limit_s = None
        if limit:
            limit_s = start_s + (int(limit[1] or 0) * 60 + int(limit[2])) * 60 + int(limit[3])
        for slot in slots:
            holder = self.holders.get(slot)
            if holder is not None and holder != record.job and holder in self.open_runs:
                self.open_runs[holder].note_end(start_s, REPLACED)
            self.holders[slot] = record.job
        self.open_runs[record.job] = _OpenRun(record.line, nodes, start_s, start_s, slots, limit_s)

    def _shrink(self, record: _Record) -> Iterator[Row]:
        """A job has given back some of its nodes, and keeps those that are named."""
        nodes, slots = _places(record)
        now_s = self.clock.seconds(record.local_s)
        run = self.open_runs.get(record.job)
        if run is not None and now_s is not None:
            yield run.run(now_s)
            self._free(record.job, run, kept=slots)
            run.nodes, run.slots, run.from_s, run.has_given_back = nodes, slots, max(now_s, run.from_s), True
        else:
            yield OtherRow("records of other types")

    def _ended(self, record: _Record) -> Iterator[Row]:
        run = self.open_runs.pop(record.job, None)
        if run is not None:
            self._free(record.job, run)
        started = _START.search(record.message)
        if run is None and (started is None or started[1] == "0"):
            if record.kind == "R":
                raise _UnusableError("a rerun of which neither start nor nodes are known", record, "start=", "")
            # It was deleted before it ran.
            yield OtherRow("jobs that never started")
            return
        start_s = run.start_s if run is not None and started is None else _time(record, _START, "start", self.calendar)
        until_s, assumed = self._end(record)
        if until_s < start_s:
            raise _UnusableError(
                "an end before the start", record, f"end= at or after start= ({start_s:.0f})", f"{until_s:.0f}"
            )
        self._happened(record, until_s)
        self.ends += run is None and start_s >= (self.first_s or 0.0)
        if run is not None and run.has_given_back:
            # The record names all nodes that it ever had.
            yield run.run(until_s, record.line, assumed)
            return
        if _HOSTS.search(record.message) or _VNODES.search(record.message) or run is None:
            nodes, _ = _places(record, until_s - start_s)
        else:
            nodes = run.nodes
        if until_s == start_s:
            yield OtherRow("jobs of no length")
        else:
            yield Run(nodes, start_s, until_s, record.line, assumed)

    def _free(self, job: str, run: _OpenRun, kept: Collection[tuple[str, str]] = ()) -> None:
        """A job has its places no more, but for those that it keeps: who gets them ends nothing of it."""
        for slot in run.slots:
            if slot not in kept and self.holders.get(slot) == job:
                del self.holders[slot]

    def _end(self, record: _Record) -> tuple[float, str]:
        """When the run of a record has ended, and what was assumed."""
        ends = _END.findall(record.message)
        if ends and ends[-1] != "0":
            return _seconds(record, ends[-1], "end", self.calendar), ""
        now_s = self.clock.seconds(record.local_s)
        if now_s is None:
            raise _UnusableError("an end without a time", record, "end= in seconds since 1970", "")
        # That is how Torque writes reruns, and PBS did before 2016.
        return now_s, "" if record.kind == "R" else END_OF_RECORD

    def _note_gone(self, record: _Record) -> None:
        run = self.open_runs.get(record.job)
        now_s = self.clock.seconds(record.local_s)
        if now_s is not None:
            self.last_s = max(self.last_s, now_s)
            if run is not None:
                run.note_end(now_s, ABORTED if record.kind == "A" else DELETED)

    def _happened(self, record: _Record, time_s: float) -> None:
        self.clock.learn(record.local_s, time_s)
        self.first_s = time_s if self.first_s is None else min(self.first_s, time_s)
        self.last_s = max(self.last_s, time_s)


class _UnusableError(Exception):
    """A record can't be used."""

    def __init__(self, reason: str, record: _Record, expected: str, got: object, node_s: float | None = None) -> None:
        super().__init__(reason)
        self.row = SkippedRow(reason, InvalidInputError(record.line.place, expected, got), node_s)


def _time(record: _Record, pattern: re.Pattern[str], name: str, calendar: CalendarReader) -> float:
    # What users choose comes earlier, or behind the list of resources.
    times = pattern.findall(record.message.partition(_LISTED)[0]) or pattern.findall(record.message)
    return _seconds(record, times[-1] if times else "", name, calendar)


def _seconds(record: _Record, text: str, name: str, calendar: CalendarReader) -> float:
    if not _TIME.fullmatch(text):
        raise _UnusableError(f"a record without {name}=", record, f"{name}= in seconds since 1970", text)
    time_s = calendar.read(text.zfill(_MIN_DIGITS + len(text.partition(".")[2])), record.line.place)
    if not MIN_TIME_S <= time_s <= MAX_TIME_S:
        raise _UnusableError("a time before 1990 or after 2100", record, f"{name}= of a right clock", text)
    return time_s


def _places(record: _Record, seconds: float | None = None) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Nodes without duplicates, as a job may use several chunks of one, and the first place on each host."""
    head = record.message.partition(_LISTED)[0]
    hosts = _HOSTS.findall(head) or _HOSTS.findall(record.message)
    vnodes = _VNODES.findall(head) or _VNODES.findall(record.message)
    slots: dict[str, str] = {}
    for part in _parts(hosts[-1]) if hosts else ():
        host, _, places = part.partition("/")
        first = _SLOT.match(places)
        slots.setdefault(_host(host), first[0] if first else "")
    vnode_hosts = (_host(name) for name in _VNODE.findall(vnodes[-1] if vnodes else ""))
    names = tuple(slots) or tuple(dict.fromkeys(vnode_hosts))
    if not names or not all(map(_NAME.fullmatch, names)):
        count = _COUNT.search(record.message)
        node_s = int(count[1]) * seconds if count and seconds is not None else None
        got = hosts[-1][:80] if hosts else ""
        expected = "exec_host=NAME/... or exec_vnode=(NAME:...)"
        raise _UnusableError("a job whose record names no node", record, expected, got, node_s)
    return names, tuple((host, slot) for host, slot in slots.items() if slot)


def _parts(hosts: str) -> Iterable[str]:
    """Each host with its places."""
    if numbers := _NUMBERS.fullmatch(hosts):
        try:
            return [name.removeprefix("n") for name in expand(f"n[{numbers[1]}]")]
        except InvalidInputError:
            return (hosts,)
    return filter(None, hosts.split("+"))


def _host(name: str) -> str:
    """The host of a vnode or port. Published logs have made-up names in brackets."""
    return _PART_OF_HOST.sub("", _PORT.sub("", name)).strip("[]")
