"""Reads workloads: job logs in SWF or from Slurm's accounting, and job tables in CSV with the machine as JSON."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.machine import SSD_CLASSES_GB, MachineSpec, read_machine
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload, read_workload, workload_of_jobs
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.json_values import JsonValue, is_json, read_values
from malletrain.simulator.traces.lines import Line, read_lines
from malletrain.simulator.traces.row_counts import RowCounts
from malletrain.simulator.traces.runs import OtherRow, Run, SkippedRow
from malletrain.simulator.traces.slurm_accounting import JOBS, cells_of, elapsed_of, number_of, run_of
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
    jobs_of_log = list(counts.used_of(rows))
    if not jobs_of_log:
        raise counts.first_skipped or InvalidInputError(str(path), "at least one job that ran, got none")
    counts.check()
    nodes = spec.nodes or len({name for entry in jobs_of_log for name in entry.nodes})
    first_s = min(entry.job.submit_s for entry in jobs_of_log)
    jobs = (replace(entry.job, submit_s=entry.job.submit_s - first_s) for entry in jobs_of_log)
    if not spec.burst_buffer_gb:
        jobs = (replace(job, burst_buffer_gb=0) for job in jobs)
    return workload_of_jobs(path, jobs, nodes, spec, skip_too_large=skip_too_large)


def _from_table(lines: Iterable[Line], calendar: CalendarReader) -> Iterator[_SlurmJob | SkippedRow | OtherRow]:
    for row_or_skipped in read_table(lines, _NEEDED, _OPTIONAL, SACCT):
        if isinstance(row_or_skipped, SkippedRow):
            yield row_or_skipped
            continue
        line, cells = row_or_skipped
        submit, begin, end, nodes, job, raw, state, elapsed_raw, elapsed, limit, limit_raw, allocated, requested = cells
        if "." in job or "." in raw:
            yield OtherRow("steps of jobs")
            continue
        row = run_of(line, raw or job, state, (begin, end), elapsed_of(elapsed_raw, elapsed), nodes, calendar)
        limit_s = elapsed_of("", limit)
        if limit_raw.isdecimal() and limit_raw.isascii():
            limit_s = int(limit_raw[:9]) * _MINUTE_S
        yield _job_of(row, submit, limit_s, allocated or requested, calendar)


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
        allocated = tres.get("allocated") if isinstance(tres, dict) else None
        yield _job_of(
            row,
            f"{submitted:.0f}" if submitted else "",
            None if minutes is None else minutes * _MINUTE_S,
            _tres_text(allocated),
            calendar,
        )


def _tres_text(tres: Any) -> str:
    """A list of resources as `sacct -P` prints it."""
    entries = [entry for entry in tres if isinstance(entry, dict)] if isinstance(tres, list) else []
    counted = [(entry, number_of(entry.get("count"))) for entry in entries]
    return ",".join(f"{entry.get('type')}/{entry.get('name')}={count:.0f}" for entry, count in counted if count)


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


COLUMNS = ("job", "submit_s", "nodes", "run_s", "estimate_s", "burst_buffer_gb", "ssd_gb", "after")
_REQUIRED = 5
_MAX_SECONDS = 1e11
_MAX_AMOUNT = 10**12
_MAX_AFTER = 64


def read_jobs(path: Path) -> tuple[BatchJob, ...]:
    """The jobs of a table, in the file's order.

    Raises:
        InvalidInputError: the file can't be read, or is not such a table; the error names line and column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return tuple(_jobs(csv.reader(file), str(path)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(str(path), f"a readable CSV file ({error})") from error


def write_jobs(workload: BatchWorkload, path: Path) -> None:
    """Write a table and the machine's JSON beside it.

    Where numbers of jobs repeat, as they may in a log, jobs are numbered from 1 in their order.

    Raises:
        InvalidInputError: the name does not end in .csv, its folder does not exist, or the machine has other SSDs than
            the JSON has words for.
        OSError: a file can't be written.
    """
    if path.suffix != ".csv" or not path.parent.is_dir():
        raise InvalidInputError("to", "a name that ends in .csv, in a folder that exists", str(path))
    machine = workload.resources
    if machine is not None and machine.has_ssd and (machine.small_ssd_gb, machine.large_ssd_gb) != SSD_CLASSES_GB:
        raise InvalidInputError("ssd", "128 and 256 GB, the classes of a job table", machine)
    numbers = [job.number for job in workload.jobs]
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        numbers = list(range(1, len(numbers) + 1))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        dependent = any(job.after for job in workload.jobs)
        writer.writerow(COLUMNS if dependent else COLUMNS[:-1])
        newest: dict[int, int] = {}
        for number, job in zip(numbers, workload.jobs, strict=True):
            times = (_number(value) for value in (job.run_s, job.estimate_s))
            after = [" ".join(str(newest[name]) for name in job.after if name in newest)] if dependent else []
            writer.writerow((number, _number(job.submit_s), job.nodes, *times, job.burst_buffer_gb, job.ssd_gb, *after))
            newest[job.number] = number
    values: dict[str, object] = {"nodes": workload.nodes}
    if machine is not None:
        values["burst_buffer_gb"] = machine.burst_buffer_gb
        values["nodes_with_256gb_ssd"] = machine.large_nodes
        values["ssd"] = machine.has_ssd
    if workload.measured_s is not None:
        values["measure_from_s"], values["measure_until_s"] = workload.measured_s
    path.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _jobs(rows: Iterable[list[str]], name: str) -> Iterator[BatchJob]:
    numbered = enumerate(rows, 1)
    _, header = next(numbered, (1, list[str]()))
    if not _REQUIRED <= len(header) <= len(COLUMNS) or tuple(header) != COLUMNS[: len(header)]:
        wanted = f"{','.join(COLUMNS[:_REQUIRED])}[,{COLUMNS[5]}[,{COLUMNS[6]}[,{COLUMNS[7]}]]]"
        raise InvalidInputError(f"{name}:1: header", wanted, ",".join(header)[:120])
    known: set[int] = set()
    for line, row in numbered:
        if not row:
            continue
        if len(row) != len(header):
            raise InvalidInputError(f"{name}:{line}", f"{len(header)} values", len(row))
        job = _job(dict(zip(header, row, strict=True)), f"{name}:{line}", line)
        if job.number in known:
            raise InvalidInputError(f"{name}:{line}: job", "a number that no earlier line has", job.number)
        for number in job.after:
            if number not in known:
                raise InvalidInputError(f"{name}:{line}: after", "numbers of jobs of earlier lines", number)
        known.add(job.number)
        yield job


def _job(values: dict[str, str], place: str, line: int) -> BatchJob:
    return BatchJob(
        number=_whole(values, "job", place, 0),
        submit_s=_seconds(values, "submit_s", place),
        nodes=_whole(values, "nodes", place, 1),
        run_s=_seconds(values, "run_s", place, above=0.0),
        estimate_s=_seconds(values, "estimate_s", place, above=0.0),
        line=line,
        burst_buffer_gb=_whole(values, "burst_buffer_gb", place, 0) if "burst_buffer_gb" in values else 0,
        ssd_gb=_whole(values, "ssd_gb", place, 0) if "ssd_gb" in values else 0,
        after=_after(values.get("after", ""), place),
    )


def _after(text: str, place: str) -> tuple[int, ...]:
    names = text.split()
    if len(names) > _MAX_AFTER or not all(name.isascii() and name.isdigit() and len(name) <= 13 for name in names):
        raise InvalidInputError(
            f"{place}: after", f"at most {_MAX_AFTER} numbers of jobs with blanks between", text[:120]
        )
    return tuple(dict.fromkeys(map(int, names)))


def _whole(values: dict[str, str], column: str, place: str, minimum: int) -> int:
    text = values[column].strip()
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text[:14]) <= _MAX_AMOUNT:
        raise InvalidInputError(f"{place}: {column}", f"a whole number, at least {minimum}", text)
    return int(text)


def _seconds(values: dict[str, str], column: str, place: str, above: float | None = None) -> float:
    text = values[column].strip()
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if "_" in text or not 0 <= value <= _MAX_SECONDS or (above is not None and not value > above):
        expected = "seconds above 0" if above is not None else "seconds, at least 0"
        raise InvalidInputError(f"{place}: {column}", expected, text)
    return value


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def read_any_workload(
    path: Path,
    *,
    spec: MachineSpec,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
    counts: RowCounts | None = None,
) -> BatchWorkload:
    """The jobs of a file: NAME.csv with NAME.json beside it, a log of Slurm, or one in the Standard Workload Format.

    Args:
        path: The file.
        spec: What is known of the machine; the file says the rest.
        processors_per_node: As in `workload_of`; only for logs.
        skip_too_large: Whether to skip jobs that ask for more than the machine has.
        counts: Counts rows of a log of Slurm that can't be used; None: more than a per cent of them is an error.

    Raises:
        InvalidInputError: a file is not valid, or a job asks for more than the machine has.
    """
    if path.suffix != ".csv" and is_slurm(path):
        if processors_per_node is not None:
            raise InvalidInputError("--processors-per-node", "nothing with a log of Slurm, whose sizes are nodes")
        return read_slurm_workload(path, spec, skip_too_large=skip_too_large, counts=counts)
    if path.suffix != ".csv":
        return read_workload(
            path, nodes=spec.nodes, processors_per_node=processors_per_node, skip_too_large=skip_too_large, spec=spec
        )
    if processors_per_node is not None:
        raise InvalidInputError("--processors-per-node", "nothing with a job table, whose sizes are nodes")
    beside = path.with_suffix(".json")
    known = read_machine(beside, spec.nodes) if beside.exists() else MachineSpec()
    spec = _over(known, spec)
    if spec.nodes is None:
        raise InvalidInputError("nodes", f"the machine's size, here or in {beside.name} beside the table")
    return workload_of_jobs(path, read_jobs(path), spec.nodes, spec, skip_too_large=skip_too_large)


def _over(known: MachineSpec, options: MachineSpec) -> MachineSpec:
    """What is given counts; the rest is what the file says."""
    return replace(
        known,
        **{name: value for name in MachineSpec.__dataclass_fields__ if (value := getattr(options, name)) is not None},
    )
