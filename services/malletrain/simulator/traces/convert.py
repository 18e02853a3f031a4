"""Converts logs of schedulers to traces: reads the files and calls the parsers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.calendar_time import CalendarReader, time_zone
from malletrain.simulator.traces.column_logs import ColumnNames, csv_rows, json_rows, parquet_rows, read_columns
from malletrain.simulator.traces.columns import Columns, fragments_of
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.json_values import JsonValue, is_json, read_values
from malletrain.simulator.traces.lines import Line, read_lines, size_of
from malletrain.simulator.traces.log_window import Interval, LogWindow, end_runaway_runs, window_of
from malletrain.simulator.traces.lsf_accounting import read_lsf
from malletrain.simulator.traces.pbs_accounting import read_pbs
from malletrain.simulator.traces.placing import node_names, place_runs
from malletrain.simulator.traces.poll_trace import poll_times, trace_of_polls
from malletrain.simulator.traces.polling import UNKNOWN_STATE, PollReader
from malletrain.simulator.traces.presence import Presence, busy_shares, idle_columns, presence_of
from malletrain.simulator.traces.row_counts import MAX_SKIPPED, Facts, RowCounts, metadata_of, sentences_of
from malletrain.simulator.traces.runs import Reader, Recorded, Row, Run, RunTable, SkippedRow, table_of
from malletrain.simulator.traces.slurm_accounting import JOBS, read_outages, read_sacct, read_sacct_json
from malletrain.simulator.traces.system_nodes import SystemNodes, match_names, parse_nodes

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?")
Progress = Callable[[float], None]
"""Called now and then with the bytes of the inputs that were read."""


@dataclass(frozen=True)
class JobLogFormat:
    """How a kind of log is read.

    Attributes:
        read: Reads its lines; None: columns that the user names are read.
        read_json: Reads it where it is JSON; None if it never is.
        json_key: Key of the jobs in the JSON.
        boot_times: Whether the boot times of `scontrol show node` are of the same calendar as the log.
    """

    read: Reader | None
    read_json: Callable[[Iterable[JsonValue], CalendarReader], Iterator[Row]] | None = None
    json_key: str = ""
    boot_times: bool = False


READERS: Mapping[str, JobLogFormat] = MappingProxyType(
    {
        "csv": JobLogFormat(None),
        "sacct": JobLogFormat(read_sacct, read_sacct_json, JOBS, boot_times=True),
        "pbs": JobLogFormat(read_pbs),
        "lsf": JobLogFormat(read_lsf),
    }
)
"""Logs of jobs by the names of their formats."""


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """What a user says of a log.

    Attributes:
        nodes: File of all nodes, with their boot times if it is from `scontrol show node -o`; None: the nodes that the
            log names, sorted by name.
        window: Calendar times of the trace's begin and end; None: chosen by what the log covers.
        down: File of outages; see `slurm_accounting.read_outages`.
        only_nodes: Hostlist of the nodes that count, such as those of a partition; None: all.
        zone: Zone of times that are written without one; None: not known.
        header: Names of the columns, for outputs of `sacct -n`; None: the log has a header.
        columns: Which column holds what; for CSV and Parquet.
        nodes_count: Nodes of the machine, for a log that does not name them.
        slots_per_node: Slots of each of these, where jobs have slots.
        strict: Whether the first row that would be skipped is an error instead.
        max_skipped: Share of rows, and of node-hours, that may be skipped.
    """

    nodes: Path | None = None
    window: tuple[str, str] | None = None
    down: Path | None = None
    only_nodes: str | None = None
    zone: str | None = None
    header: str | None = None
    columns: ColumnNames = field(default_factory=ColumnNames)
    nodes_count: int | None = None
    slots_per_node: int | None = None
    strict: bool = False
    max_skipped: float = MAX_SKIPPED


@dataclass(frozen=True)
class Conversion:
    """A trace, and what is to be known of how it was made.

    Attributes:
        notes: What was skipped, assumed and chosen: sentences for people.
        metadata: The same for the trace's JSON, under its key `conversion`.
    """

    trace: Trace
    notes: tuple[str, ...]
    metadata: Mapping[str, object]


_DEFAULTS = ConversionOptions()


def convert_jobs(
    log_format: str,
    inputs: Sequence[Path],
    options: ConversionOptions = _DEFAULTS,
    progress: Progress | None = None,
) -> Conversion:
    """Trace of a log of jobs: a node is idle while it is up and no job holds it.

    Args:
        log_format: One of `READERS`.
        inputs: Files in the order of time: a job may start in one and end in the next.
        options: What is known of the log.
        progress: See `Progress`.

    Raises:
        InvalidInputError: a file is not valid, or too much of it can't be used; the error names file and line.
    """
    reader = READERS[log_format]
    if reader.read is None:
        _check_amounts(options)
    calendar = CalendarReader(None if options.zone is None else time_zone(options.zone))
    counts = RowCounts(strict=options.strict, max_skipped=options.max_skipped)
    name = str(inputs[0])
    recorded: list[Recorded] = []
    runs = counts.used_of(_without_recorded(_rows(reader, inputs, options, calendar, progress), recorded))
    unnamed = reader.read is None and not options.columns.names_nodes
    table = table_of(_place_runs(runs, options, counts, name) if unnamed else runs)
    if not table.size:
        raise counts.first_skipped or InvalidInputError(name, f"at least one job that held nodes, got {counts.others}")
    listed = _listed_nodes(options, calendar, boot_times=reader.boot_times)
    if unnamed and options.nodes_count is not None:
        listed = SystemNodes(node_names(options.nodes_count), place="--nodes-count")
    table, left_out = _only_nodes(table, options.only_nodes, name)
    table, nodes = _on_system(table, listed, counts)
    counts.check()
    chosen = None if options.window is None else _given_window(options.window, calendar)
    window = window_of(table, chosen, calendar, name, recorded[0] if recorded else None)
    table, unended = end_runaway_runs(table)
    presence = presence_of(table, nodes, window.bounds)
    counted = np.maximum(presence.present[0], presence.up_from), presence.present[1]
    down = RowCounts(strict=options.strict, max_skipped=options.max_skipped)
    held = [table] if options.down is None else [table, _outages(options.down, nodes, calendar, down)]
    columns = idle_columns(held, counted, window.bounds)
    trace = _trace(columns, nodes, presence, window, calendar.origin(window.begin))
    idle_s = float((columns.end - columns.begin).sum())
    oldest = "" if unended.oldest is None else table.place(unended.oldest)
    facts = Facts(
        counts,
        down,
        window,
        presence,
        unended,
        oldest,
        listed is not None,
        left_out,
        idle_s,
        busy_shares(columns, presence.present, window.bounds),
    )
    return Conversion(trace, tuple(sentences_of(facts, calendar)), metadata_of(facts, calendar))


def _rows(
    reader: JobLogFormat,
    inputs: Sequence[Path],
    options: ConversionOptions,
    calendar: CalendarReader,
    progress: Progress | None,
) -> Iterator[Row | Recorded]:
    """Rows of all files. Lines are read as one log, since a job may start in one file and end in the next."""
    done = 0
    if reader.read is None:
        for path in inputs:
            counted = _counted_from(done, progress)
            if path.suffix == ".parquet":
                rows: Iterable[tuple[Line, dict[str, object]] | SkippedRow] = parquet_rows(path, options.columns)
            elif path.is_file() and is_json(path):
                rows = json_rows(read_values(path, JOBS, counted), options.columns)
            else:
                rows = csv_rows(read_lines([path], counted), options.columns)
            yield from read_columns(rows, calendar)
            done += size_of([path])
        return
    # What is no file of its own, such as a pipe, can be read once only.
    in_json = [path for path in inputs if reader.read_json is not None and path.is_file() and is_json(path)]
    lines = [path for path in inputs if path not in in_json]
    if lines:
        read = reader.read if options.header is None else partial(read_sacct, columns=options.header)
        yield from read(read_lines(lines, progress), calendar)
    done = size_of(lines)
    for path in in_json:
        if reader.read_json is not None:
            yield from reader.read_json(read_values(path, reader.json_key, _counted_from(done, progress)), calendar)
        done += size_of([path])


def _without_recorded(rows: Iterable[Row | Recorded], recorded: list[Recorded]) -> Iterator[Row]:
    """Rows without what is said of the log as a whole, which is added to a list."""
    for row in rows:
        if isinstance(row, Recorded):
            recorded.append(row)
        else:
            yield row


def _place_runs(runs: Iterable[Run], options: ConversionOptions, counts: RowCounts, name: str) -> Iterator[Run]:
    """Runs of which only amounts are known, on nodes that are given to them."""
    if options.nodes_count is None:
        raise InvalidInputError("--nodes-count", f"the machine's size, as the columns of {name} name no nodes")
    for run in place_runs(runs, options.nodes_count, options.slots_per_node or 1):
        counts.assume(run.assumed)
        yield run


def _check_amounts(options: ConversionOptions) -> None:
    """Refuse options that the columns leave without a meaning, rather than to ignore them."""
    columns = options.columns
    if columns.names_nodes and options.nodes_count is not None:
        raise InvalidInputError("--nodes-count", "no such option with --column nodes=NAME (--nodes FILE lists nodes)")
    if not columns.names_nodes and options.nodes is not None:
        raise InvalidInputError("--nodes", "no such option without --column nodes=NAME (--nodes-count says how many)")
    if columns.counts_slots and options.slots_per_node is None:
        raise InvalidInputError("--slots-per-node", "how many slots each node has, with --column slots=NAME")
    if not columns.counts_slots and options.slots_per_node is not None:
        raise InvalidInputError("--slots-per-node", "no such option without --column slots=NAME")


def _counted_from(read: int, progress: Progress | None) -> Progress | None:
    return None if progress is None else lambda done: progress(read + done)


def _listed_nodes(options: ConversionOptions, calendar: CalendarReader, *, boot_times: bool) -> SystemNodes | None:
    if options.nodes is None:
        return None
    return parse_nodes(read_lines([options.nodes]), calendar, str(options.nodes), boot_times=boot_times)


def _only_nodes(table: RunTable, only: str | None, name: str) -> tuple[RunTable, int]:
    """The table without the nodes that are not wanted, and how many these are."""
    if only is None:
        return table, 0
    wanted = match_names(table.names, expand(only, "--only-nodes"))
    if not wanted:
        raise InvalidInputError("--only-nodes", f"nodes of which {name} tells, such as {table.names[0]}", only)
    names = tuple(old for old in table.names if old in wanted)
    positions = {old: index for index, old in enumerate(names)}
    return table.on_nodes(names, positions).without_runs_off_nodes(), len(table.names) - len(names)


def _on_system(table: RunTable, listed: SystemNodes | None, counts: RowCounts) -> tuple[RunTable, SystemNodes]:
    """The jobs on the nodes of the list; on other nodes they are skipped."""
    if listed is None:
        # A log may have a node with its domain and without it.
        meant = match_names(table.names, [name for name in table.names if "." not in name])
        names = tuple(sorted({meant.get(name, name) for name in table.names}))
        index = {name: position for position, name in enumerate(names)}
        positions = {name: index[meant.get(name, name)] for name in table.names}
        return table.on_nodes(names, positions), SystemNodes(names, listed=False)
    listed_name = match_names(table.names, listed.names)
    index = {name: position for position, name in enumerate(listed.names)}
    _skip_other_nodes(table, listed_name, listed, counts)
    positions = {name: index[node] for name, node in listed_name.items()}
    return table.on_nodes(listed.names, positions).without_runs_off_nodes(), listed


def _skip_other_nodes(table: RunTable, listed_name: Mapping[str, str], listed: SystemNodes, counts: RowCounts) -> None:
    other = np.array([name not in listed_name for name in table.names], np.bool_)
    runs, first, nodes = np.unique(table.run[other[table.node]], return_index=True, return_counts=True)
    names = table.node[other[table.node]][first]
    expected = f"nodes of {listed.place} (--only-nodes chooses a part of a log's nodes)"
    for run, name, count in zip(runs.tolist(), names.tolist(), nodes.tolist(), strict=True):
        until_s = float(table.until_s[run])
        node_s = None if math.isnan(until_s) else count * (until_s - float(table.from_s[run]))
        error = InvalidInputError(table.place(run), expected, table.names[name])
        counts.skip(SkippedRow(f"nodes that {listed.place} lacks", error, node_s))


def _outages(path: Path, nodes: SystemNodes, calendar: CalendarReader, counts: RowCounts) -> RunTable:
    """Outages of the system's nodes; those of other nodes do not matter."""
    table = table_of(counts.used_of(read_outages(read_lines([path]), calendar)))
    counts.check()
    index = {name: position for position, name in enumerate(nodes.names)}
    positions = {name: index[node] for name, node in match_names(table.names, nodes.names).items()}
    return table.on_nodes(nodes.names, positions)


def _trace(columns: Columns, nodes: SystemNodes, presence: Presence, window: LogWindow, origin: str | None) -> Trace:
    begin, end = window.bounds
    from_s, until_s = presence.present
    names = tuple(name for name, low, high in zip(nodes.names, from_s, until_s, strict=True) if low < high)
    parts = zip(nodes.names, from_s.tolist(), until_s.tolist(), strict=True)
    present_s = {
        name: (low - begin, high - begin) for name, low, high in parts if low < high and (low > begin or high < end)
    }
    return Trace(fragments_of(columns, nodes.names), names, end - begin, origin=origin, present_s=present_s)


def convert_polling(
    inputs: Sequence[Path],
    options: ConversionOptions = _DEFAULTS,
    debounce: int = 0,
    progress: Progress | None = None,
) -> Conversion:
    """Trace of a log of polls; see `polling.PollReader` and `poll_trace.trace_of_polls`.

    Args:
        inputs: Logs, in the order of time.
        options: `nodes`, `zone`, `strict` and `max_skipped` are used.
        debounce: Idle periods of at most this many samples between two other states are dropped.
        progress: See `Progress`.

    Raises:
        InvalidInputError: a file is not valid, or too much of it can't be used; the error names file and line.
    """
    calendar = CalendarReader(None if options.zone is None else time_zone(options.zone))
    counts = RowCounts(strict=options.strict, max_skipped=options.max_skipped)
    reader = PollReader(calendar)
    polls = list(counts.used_of(reader.read(read_lines(inputs, progress))))
    timing = poll_times(polls, in_zone=options.zone is not None)
    for row in timing.late:
        counts.skip(row)
    for what, count in timing.assumed.items():
        counts.assume(what, count)
    if unclear := sum(poll.content.unclear for poll in polls):
        counts.assume(UNKNOWN_STATE, unclear)
    counts.check()
    listed = _listed_nodes(options, calendar, boot_times=False)
    trace = trace_of_polls(polls, timing.times_s, reader.places, calendar, listed, debounce)
    return Conversion(trace, tuple(counts.sentences()), counts.metadata())


def _given_window(window: tuple[str, str], calendar: CalendarReader) -> Interval:
    begin, end = (_given_time(text, calendar) for text in window)
    if not begin < end:
        raise InvalidInputError("--window", f"an end after its beginning ({window[0]})", window[1])
    return begin, end


def _given_time(text: str, calendar: CalendarReader) -> float:
    if calendar.has_calendar:
        # A day begins at midnight, as for the queries of schedulers.
        return calendar.read(f"{text}T00:00:00" if _DAY.fullmatch(text) else text, "--window")
    if not _SECONDS.fullmatch(text):
        raise InvalidInputError("--window", "seconds, as the log has no calendar", text)
    return calendar.read_seconds(float(text), "--window")
