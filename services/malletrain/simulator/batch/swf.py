"""Job logs in the Standard Workload Format, version 2.2 (Feitelson's Parallel Workloads Archive)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.machine import parse_burst_buffer, parse_ssd
from malletrain.simulator.traces.lines import UNREADABLE, open_log, unreadable
from malletrain.simulator.traces.row_counts import RowCounts
from malletrain.simulator.traces.runs import SkippedRow

FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time used",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user ID",
    "group ID",
    "executable number",
    "queue number",
    "partition number",
    "preceding job number",
    "think time",
)
FURTHER_FIELDS = ("burst buffer", "local SSD")
_WHOLE = (0, 4, 7, 10)
# Times beyond 3,000 years are errors in the log, and their sums would not be exact to the second.
_MAX_SECONDS = 1e11
_MAX_PROCESSORS = 1e9
_COMMENT = re.compile(r";\s*(\w+)\s*:\s*(-?\d+)(?![\w.])")
_FURTHER = re.compile(r";\s*(BurstBuffer|LocalSSD)\s*:\s*(.*)", re.IGNORECASE)
_AMOUNT = re.compile(r"-?[\d.]+")
_BURST_BUFFER, _LOCAL_SSD = "burstbuffer", "localssd"
_START = "unixstarttime"


@dataclass(frozen=True, slots=True)
class SwfRecord:
    """One line of a log. A value below 0 is unknown.

    Attributes:
        line: Line number in the file, from 1.
        number: Job number.
        submit_s: Submission in seconds after second 0 of the log.
        run_s: Wall-clock run time, seconds.
        allocated: Processors that the job got.
        requested: Processors that the user asked for.
        requested_s: Run time that the user asked for, seconds.
        status: 0: failed, 1: completed, 2 to 4: part of a job that has a line of its own, 5: cancelled.
        burst_buffer_gb: Burst buffer that the user asked for in GB; unknown is 0.
        ssd_gb: Local SSD of each node that the user asked for in GB; unknown is 0.
        preceding: Number of the job after whose end it may start.
    """

    line: int
    number: int
    submit_s: float
    run_s: float
    allocated: int
    requested: int
    requested_s: float
    status: int
    burst_buffer_gb: int = 0
    ssd_gb: int = 0
    preceding: int = -1


@dataclass(frozen=True)
class SwfLog:
    """The content of a log file.

    Attributes:
        name: Path of the file, for errors.
        records: Its lines, in the file's order.
        max_nodes: Nodes of the machine, from the header; None if it is not there.
        max_processors: Processors of the machine, from the header; None if it is not there.
        unix_start_s: Second 0 of the log in seconds since the epoch, from the header; None if it is not there.
        burst_buffer: The header's BurstBuffer; None if it is not there.
        local_ssd: The header's LocalSSD; None if it is not there.
    """

    name: str
    records: tuple[SwfRecord, ...]
    max_nodes: int | None = None
    max_processors: int | None = None
    unix_start_s: int | None = None
    burst_buffer: str | None = None
    local_ssd: str | None = None


def read_log(path: Path, counts: RowCounts | None = None) -> SwfLog:
    """Read a log, plain or compressed.

    Args:
        path: The log.
        counts: See `parse_log`.

    Raises:
        InvalidInputError: the file is not SWF; the error names file, line and field.
    """
    try:
        with open_log(path) as log:
            return parse_log(log.file, str(path), counts)
    except UNREADABLE as error:
        raise unreadable(error, path) from error


def parse_log(lines: Iterable[bytes], name: str, counts: RowCounts | None = None) -> SwfLog:
    """Parse the lines of a log.

    The header comments MaxNodes, MaxProcs and UnixStartTime are used if their value is a whole number; the first one of
    each counts. With BurstBuffer each line has a field 19, and with LocalSSD also a field 20. Without these, lines of
    21 fields and more, or with words in fields 19 and 20, are those of the standard and further ones that are not used,
    as in the logs of MetaCentrum.

    Args:
        lines: The log.
        name: Of the log, for errors.
        counts: Counts lines that can't be used; None: the first one is an error.

    Raises:
        InvalidInputError: a line is neither a comment nor 18 numbers (with BurstBuffer 19, with LocalSSD 20), or a
            number is out of its range, or too many are.
    """
    records: list[SwfRecord] = []
    header: dict[str, int] = {}
    further: dict[str, str] = {}
    for line, raw in enumerate(lines, 1):
        # Comments hold people's and sites' names in whatever encoding; data are ASCII in all of them.
        text = raw.decode("latin-1").strip()
        if text.startswith(";"):
            more = _FURTHER.match(text)
            if more:
                if records:
                    raise InvalidInputError(f"{name}:{line}: {more[1]}", "a header before the first job")
                checked = parse_burst_buffer if more[1].lower() == _BURST_BUFFER else parse_ssd
                checked(more[2], f"{name}:{line}: {more[1]}")
                further.setdefault(more[1].lower(), more[2])
                continue
            match = _COMMENT.match(text)
            if match:
                header.setdefault(match[1].lower(), int(match[2]))
                if header.get(_START, 0) > _MAX_SECONDS:
                    place = f"{name}:{line}: UnixStartTime"
                    raise InvalidInputError(place, "seconds since the epoch", match[2])
        elif text:
            try:
                record = _record(text.split(), name, line, _fields_beyond(further, name, line))
            except InvalidInputError as error:
                if counts is None:
                    raise
                counts.skip(SkippedRow("a line that is no job", error))
            else:
                records.append(record)
                if counts is not None:
                    counts.use()
    if counts is not None:
        if not records:
            raise counts.first_skipped or InvalidInputError(name, "at least one job, got none")
        counts.check()
    nodes, processors = header.get("maxnodes", 0), header.get("maxprocs", 0)
    start_s = header.get(_START, -1)
    return SwfLog(
        name,
        tuple(records),
        nodes if nodes > 0 else None,
        processors if processors > 0 else None,
        start_s if start_s >= 0 else None,
        further.get(_BURST_BUFFER),
        further.get(_LOCAL_SSD),
    )


def _fields_beyond(further: dict[str, str], name: str, line: int) -> int:
    """How many fields each line has beyond the standard's."""
    if _LOCAL_SSD in further and _BURST_BUFFER not in further:
        raise InvalidInputError(f"{name}:{line}: BurstBuffer", "a total in the header, as LocalSSD is there (0: none)")
    return len(further)


def _record(words: list[str], name: str, line: int, beyond: int) -> SwfRecord:
    place = f"{name}:{line}"
    fields = len(FIELDS) + beyond
    further = words[len(FIELDS) :]
    if beyond == 0 and (len(further) > len(FURTHER_FIELDS) or any(_AMOUNT.fullmatch(word) is None for word in further)):
        words = words[: len(FIELDS)]
    if len(words) != fields:
        hint = ""
        if len(FIELDS) < len(words) <= len(FIELDS) + len(FURTHER_FIELDS):
            hint = "; fields 19 and 20 need BurstBuffer and LocalSSD with totals in the header"
        raise InvalidInputError(place, f"{fields} fields (this line has {len(words)}){hint}", " ".join(words)[:80])
    requests = [_amount(word, index, place) for index, word in enumerate(words[len(FIELDS) :])]
    values = [_value(word, index, place) for index, word in enumerate(words[: len(FIELDS)])]
    if values[1] < 0:
        raise InvalidInputError(f"{place}: submit time", "seconds, at least 0", words[1])
    return SwfRecord(
        line=line,
        number=int(values[0]),
        submit_s=values[1],
        run_s=values[3],
        allocated=int(values[4]),
        requested=int(values[7]),
        requested_s=values[8],
        status=int(values[10]),
        burst_buffer_gb=requests[0] if requests else 0,
        ssd_gb=requests[1] if len(requests) > 1 else 0,
        preceding=int(values[16]) if values[16].is_integer() and abs(values[16]) < _MAX_SECONDS else -1,
    )


def _amount(word: str, index: int, place: str) -> int:
    """Whole GB; −1, which is unknown, is none."""
    if word == "-1":
        return 0
    if not (word.isascii() and word.isdigit()) or len(word) > 12:
        raise InvalidInputError(f"{place}: {FURTHER_FIELDS[index]}", "whole GB, at least 0 (-1: none)", word)
    return int(word)


def _value(word: str, index: int, place: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    # float() accepts 1_000, which is an error in a log.
    if "_" in word or not abs(value) < float("inf"):
        raise InvalidInputError(f"{place}: {FIELDS[index]}", "a number (-1 where unknown)", word)
    if index in _WHOLE:
        if not value.is_integer():
            raise InvalidInputError(f"{place}: {FIELDS[index]}", "a whole number (-1 where unknown)", word)
        if value > _MAX_PROCESSORS:
            raise InvalidInputError(f"{place}: {FIELDS[index]}", f"at most {_MAX_PROCESSORS:.0f}", word)
    elif index in (1, 3, 8) and value > _MAX_SECONDS:
        raise InvalidInputError(f"{place}: {FIELDS[index]}", f"seconds, at most {_MAX_SECONDS:.0f}", word)
    return value
