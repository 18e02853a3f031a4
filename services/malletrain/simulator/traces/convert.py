"""Converts logs of schedulers to traces: reads the files and calls the parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.lines import Line, read_lines, size_of
from malletrain.simulator.traces.machine_file import parse_machine
from malletrain.simulator.traces.occupancy import BusyPeriod, Interval, Machine, idle_trace, machine_of
from malletrain.simulator.traces.pbs_accounting import parse_pbs
from malletrain.simulator.traces.polling import parse_polls, trace_of_polls
from malletrain.simulator.traces.slurm_accounting import parse_outages, parse_sacct

Progress = Callable[[float], None]
"""Called now and then with the bytes of the inputs that were read."""
_Parser = Callable[[Iterable[Line], CalendarReader], list[BusyPeriod]]


def convert_polling(
    inputs: Sequence[Path], nodes: Path | None = None, debounce: int = 0, progress: Progress | None = None
) -> Trace:
    """Trace of a log of polls; see `polling.parse_polls` and `polling.trace_of_polls`.

    Args:
        inputs: Logs, in the order of time.
        nodes: File of all nodes; None: the nodes that the log names.
        debounce: Idle periods of at most this many samples between two other states are dropped.
        progress: See `Progress`.

    Raises:
        InvalidInputError: a file is not valid; the error names file and line.
    """
    calendar = CalendarReader()
    samples = parse_polls(read_lines(inputs, progress), calendar)
    machine = None if nodes is None else parse_machine(read_lines([nodes]), calendar, str(nodes), boot_times=False)
    return trace_of_polls(samples, calendar, machine, debounce)


def convert_sacct(
    inputs: Sequence[Path],
    nodes: Path | None = None,
    window: tuple[str, str] | None = None,
    down: Path | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Trace of Slurm's accounting: a node is idle while it is up and no job holds it.

    Args:
        inputs: Outputs of `sacct -P`, each with its header.
        nodes: File of all nodes, with their boot times if it is from `scontrol show node -o`; None: the nodes that jobs
            used, sorted by name.
        window: Calendar times of the trace's begin and end; None: the first and the last time in the log.
        down: File of outages; see `slurm_accounting.parse_outages`.
        progress: See `Progress`.

    Raises:
        InvalidInputError: a file is not valid; the error names file and line.
    """
    return _convert_jobs(inputs, parse_sacct, nodes, window, down, progress, boot_times=True)


def convert_pbs(
    inputs: Sequence[Path],
    nodes: Path | None = None,
    window: tuple[str, str] | None = None,
    down: Path | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Trace of PBS accounting logs, as `convert_sacct`. All times are seconds since 1970 or have a zone.

    Raises:
        InvalidInputError: a file is not valid; the error names file and line.
    """
    return _convert_jobs(inputs, parse_pbs, nodes, window, down, progress, boot_times=False)


def _convert_jobs(
    inputs: Sequence[Path],
    parse: _Parser,
    nodes: Path | None,
    window: tuple[str, str] | None,
    down: Path | None,
    progress: Progress | None,
    *,
    boot_times: bool,
) -> Trace:
    calendar = CalendarReader()
    # A job may start in one file and end in the next, so that all files of PBS are parsed together.
    groups = [[path] for path in inputs] if parse is parse_sacct else [inputs]
    jobs: list[BusyPeriod] = []
    read = 0
    for group in groups:
        jobs += parse(read_lines(group, _counted_from(read, progress)), calendar)
        read += size_of(group)
    if not jobs:
        raise InvalidInputError(str(inputs[0]), "at least one job that held nodes, got none")
    machine: Machine
    if nodes is None:
        machine = machine_of(jobs)
    else:
        machine = parse_machine(read_lines([nodes]), calendar, str(nodes), boot_times=boot_times)
    outages = [] if down is None else parse_outages(read_lines([down]), calendar)
    bounds = _log_window(jobs) if window is None else _given_window(window, calendar)
    return idle_trace(jobs, machine, bounds, outages, calendar.origin(bounds[0]))


def _counted_from(read: int, progress: Progress | None) -> Progress | None:
    return None if progress is None else lambda done: progress(read + done)


def _given_window(window: tuple[str, str], calendar: CalendarReader) -> Interval:
    begin, end = (calendar.read(text, "--window") for text in window)
    if not begin < end:
        raise InvalidInputError("--window", f"an end after its beginning ({window[0]})", window[1])
    return begin, end


def _log_window(jobs: Sequence[BusyPeriod]) -> Interval:
    ends = (entry.from_s if entry.until_s is None else entry.until_s for entry in jobs)
    return min(entry.from_s for entry in jobs), max(ends)
