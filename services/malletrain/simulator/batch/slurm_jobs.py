"""Workloads from Slurm's accounting: `sacct -P` or `sacct --json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.machine import MachineSpec
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload, workload_of_jobs
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.json_values import JsonValue, is_json, read_values
from malletrain.simulator.traces.lines import Line, read_lines
from malletrain.simulator.traces.row_counts import RowCounts
from malletrain.simulator.traces.runs import OtherRow, Run, SkippedRow
from malletrain.simulator.traces.slurm_accounting import elapsed_of, run_of
from malletrain.simulator.traces.slurm_json import JOBS, cells_of, number_of
from malletrain.simulator.traces.text_tables import read_table

SACCT = "sacct -a -X -D -P -o JobIDRaw,Submit,Start,End,Elapsed,Timelimit,NNodes,NodeList,State,AllocTRES"
_NEEDED = ("Submit", "Start", "End", "NodeList")
_OPTIONAL = ("JobID", "JobIDRaw", "State", "ElapsedRaw", "Elapsed", "Timelimit", "TimelimitRaw", "AllocTRES", "ReqTRES")
_MAX_NUMBER = 10**12
_MINUTE_S = 60.0
_BURST_BUFFER = re.compile(r"(?:^|,)bb/[^=,]+=(\d{1,15})(?:\.\d+)?([KMGTP]?)")
_GB = {"": 1e-3, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3, "P": 1e6}
"""Slurm counts burst buffer in megabytes, and prints large amounts with a letter."""


@dataclass(frozen=True)
class _SlurmJob:
    """A job that ran, with times of the calendar in seconds."""

    job: BatchJob
    nodes: tuple[str, ...]


def is_slurm(path: Path) -> bool:
    """Whether a file is an output of `sacct` from which a workload can be read.

    Raises:
        InvalidInputError: it can't be read.
    """
    if not path.is_file():
        return False
    if is_json(path):
        return True
    lines = (line.text for line in read_lines([path]) if line.text.strip() and not line.text.startswith("#"))
    words = re.split(r"\W+", next(lines, "")[:10_000].lower())
    return "nodelist" in words and "start" in words


def read_slurm_workload(
    path: Path, spec: MachineSpec, *, skip_too_large: bool = False, counts: RowCounts | None = None
) -> BatchWorkload:
    """The jobs that ran, and the machine.

    A job's size is the number of its nodes, its estimate the time limit, or its run time where there is none. Second 0
    is the first submission. Burst buffer is what `AllocTRES` or `ReqTRES` say, where a machine with burst buffer is
    given. Each run of a requeued job is a job. Nodes are not shared in the simulation.

    Args:
        path: The output, with a header that has at least Submit, Start, End and NodeList.
        spec: What is known of the machine. Without `nodes` it has those that jobs used.
        skip_too_large: Whether to skip jobs that ask for more than the machine has.
        counts: Counts rows that can't be used; None: more than a per cent of them is an error.

    Raises:
        InvalidInputError: the file is not such an output, no job ran, or a job is larger than the machine.
    """
    counts = RowCounts(option="") if counts is None else counts
    calendar = CalendarReader()
    rows = _from_json(read_values(path, JOBS), calendar) if is_json(path) else _from_table(read_lines([path]), calendar)
    found = list(counts.used_of(rows))
    if not found:
        raise counts.first_skipped or InvalidInputError(str(path), "at least one job that ran, got none")
    counts.check()
    nodes = spec.nodes or len({name for entry in found for name in entry.nodes})
    first_s = min(entry.job.submit_s for entry in found)
    jobs = (replace(entry.job, submit_s=entry.job.submit_s - first_s) for entry in found)
    if not spec.burst_buffer_gb:
        jobs = (replace(job, burst_buffer_gb=0) for job in jobs)
    return workload_of_jobs(path, jobs, nodes, spec, skip_too_large=skip_too_large)


def _from_table(lines: Iterable[Line], calendar: CalendarReader) -> Iterator[_SlurmJob | SkippedRow | OtherRow]:
    for found in read_table(lines, _NEEDED, _OPTIONAL, SACCT):
        if isinstance(found, SkippedRow):
            yield found
            continue
        line, cells = found
        submit, begin, end, nodes, job, raw, state, elapsed_raw, elapsed, limit, limit_raw, allocated, asked = cells
        if "." in job or "." in raw:
            yield OtherRow("steps of jobs")
            continue
        row = run_of(line, raw or job, state, (begin, end), elapsed_of(elapsed_raw, elapsed), nodes, calendar)
        limit_s = elapsed_of("", limit)
        if limit_raw.isdecimal() and limit_raw.isascii():
            limit_s = int(limit_raw[:9]) * _MINUTE_S
        yield _job_of(row, submit, limit_s, allocated or asked, calendar)


def _from_json(values: Iterable[JsonValue], calendar: CalendarReader) -> Iterator[_SlurmJob | SkippedRow | OtherRow]:
    for line, value in values:
        cells = cells_of(line, value)
        if isinstance(cells, SkippedRow | OtherRow):
            yield cells
            continue
        job: Any = value
        row = run_of(line, *cells, calendar)
        minutes = number_of(job["time"].get("limit"))
        submitted = number_of(job["time"].get("submission"))
        tres = job.get("tres")
        asked = tres.get("allocated") if isinstance(tres, dict) else None
        yield _job_of(
            row,
            f"{submitted:.0f}" if submitted else "",
            None if minutes is None else minutes * _MINUTE_S,
            _tres_text(asked),
            calendar,
        )


def _tres_text(tres: Any) -> str:
    """A list of resources as `sacct -P` prints it."""
    entries = [entry for entry in tres if isinstance(entry, dict)] if isinstance(tres, list) else []
    found = [(entry, number_of(entry.get("count"))) for entry in entries]
    return ",".join(f"{entry.get('type')}/{entry.get('name')}={count:.0f}" for entry, count in found if count)


def _job_of(
    row: Run | SkippedRow | OtherRow, submit: str, limit_s: float | None, tres: str, calendar: CalendarReader
) -> _SlurmJob | SkippedRow | OtherRow:
    if not isinstance(row, Run):
        return row
    if row.until_s is None:
        return OtherRow("jobs that still ran")
    try:
        submit_s = calendar.read(submit, row.line.place) if submit.strip()[:1].isdigit() else row.from_s
    except InvalidInputError as error:
        return SkippedRow("a time that can't be read", error)
    run_s = row.until_s - row.from_s
    number = int(row.job) if row.job.isascii() and row.job.isdecimal() and len(row.job) < len(str(_MAX_NUMBER)) else 0
    job = BatchJob(
        number,
        # A job whose clock went back between its submission and its start was not submitted after it.
        min(submit_s, row.from_s),
        len(row.nodes),
        run_s,
        limit_s or run_s,
        row.line.number,
        _burst_buffer_gb(tres),
    )
    return _SlurmJob(job, row.nodes)


def _burst_buffer_gb(tres: str) -> int:
    """Whole GB of all burst buffers in a list of resources."""
    return round(sum(int(amount) * _GB[letter] for amount, letter in _BURST_BUFFER.findall(tres)))
