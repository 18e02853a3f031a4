"""Job tables: CSV with one job per line, and the machine as JSON beside it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.machine import SSD_CLASSES_GB
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload

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


def _whole(values: dict[str, str], column: str, place: str, least: int) -> int:
    text = values[column].strip()
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:14]) <= _MAX_AMOUNT:
        raise InvalidInputError(f"{place}: {column}", f"a whole number, at least {least}", text)
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
