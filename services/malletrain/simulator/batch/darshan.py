"""Requests of burst buffer from Darshan: the bytes that jobs moved, as BBSched has them for Theta (Fan et al., §4.1).

Read is what `darshan-parser` prints of a log, as text: with `--total`, or all of its records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.machine import beyond
from malletrain.simulator.batch.workload import BatchWorkload

GB = 10**9
MAX_FILES = 1_000_000
_MAX_LINE = 65536
_MAX_BYTES = 10**21
_JOB = re.compile(r"#\s*jobid:\s*(\d{1,13})\s*")
_COUNTERS = frozenset(f"{module}_BYTES_{way}" for module in ("POSIX", "STDIO") for way in ("READ", "WRITTEN"))
"""MPI-IO and other libraries move their bytes by these."""
_IN_MEMORY = frozenset({"tmpfs", "devtmpfs", "ramfs", "proc", "sysfs"})
"""File systems of a node's memory: what is moved there never comes to the parallel file system."""


@dataclass(frozen=True)
class MovedData:
    """What one log says.

    Attributes:
        job: Number of the job.
        moved_bytes: Bytes read and written.
    """

    job: int
    moved_bytes: int


def parse_darshan(lines: Iterable[str], name: str) -> MovedData:
    """What the output of `darshan-parser` says of a job.

    Totals count where there are some; otherwise the records of all files, without those in memory.

    Raises:
        InvalidInputError: it is something else, or a number is none; the error names the line.
    """
    job: int | None = None
    totals: dict[str, int] = {}
    records, any_record = 0, False
    for number, line in enumerate(lines, 1):
        place = f"{name}:{number}"
        if len(line) > _MAX_LINE:
            raise InvalidInputError(place, f"lines of at most {_MAX_LINE} characters")
        text = line.rstrip("\n")
        if match := _JOB.fullmatch(text):
            job = int(match[1])
        elif text.startswith("total_"):
            counter, _, value = text.removeprefix("total_").partition(":")
            if counter in _COUNTERS:
                totals[counter] = _bytes(value, place)
        elif text and not text.startswith("#"):
            words = text.split("\t")
            any_record = any_record or len(words) == 8
            if len(words) == 8 and words[3] in _COUNTERS and words[7].strip() not in _IN_MEMORY:
                records += _bytes(words[4], place)
    if job is None or not (totals or any_record):
        raise InvalidInputError(name, "the output of darshan-parser, with a line `# jobid:` and counters")
    return MovedData(job, sum(totals.values()) if totals else records)


def _bytes(text: str, place: str) -> int:
    value = text.strip()
    if value == "-1":  # Darshan has no such counter of this file
        return 0
    if not (value.isascii() and value.isdigit()) or len(value) > 21 or int(value) > _MAX_BYTES:
        raise InvalidInputError(place, "bytes as a whole number", value[:40])
    return int(value)


def read_darshan(path: Path) -> dict[int, int]:
    """Bytes that jobs moved, by their numbers; a job may have several logs.

    Args:
        path: An output of `darshan-parser`, or a folder of such outputs, NAME.txt.

    Raises:
        InvalidInputError: nothing is there, or a file is something else.
    """
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files or len(files) > MAX_FILES:
        raise InvalidInputError(str(path), f"1 to {MAX_FILES} outputs of darshan-parser, NAME.txt", len(files))
    moved: dict[int, int] = {}
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                data = parse_darshan(lines, str(file))
        except OSError as error:
            raise InvalidInputError(str(file), f"a readable file ({error.strerror})") from None
        moved[data.job] = moved.get(data.job, 0) + data.moved_bytes
    return moved


@dataclass(frozen=True)
class DarshanRequests:
    """A workload with requests from Darshan, and what became of the records.

    Attributes:
        asking: Jobs that ask for burst buffer by their records.
        small: Jobs that moved less than a GB, and ask for none.
        unknown: Jobs of records that the workload does not have.
        too_large: Jobs whose records say more than the machine has; they were left out.
    """

    workload: BatchWorkload
    asking: int
    small: int
    unknown: int
    too_large: int


def with_requests(
    workload: BatchWorkload, moved: Mapping[int, int], *, skip_too_large: bool = False
) -> DarshanRequests:
    """Ask for as much burst buffer as was moved, in whole GB and from one GB on.

    Args:
        workload: Jobs and machine. Jobs without a record keep their request.
        moved: Bytes by number of the job.
        skip_too_large: Leave out jobs that would ask for more than the machine has.

    Raises:
        InvalidInputError: a job moved more than the burst buffer of the machine, and is not to be left out; or no job
            is left.
    """
    jobs, asking, small, too_large = [], 0, 0, 0
    for job in workload.jobs:
        amount = moved.get(job.number)
        if amount is not None:
            small += amount < GB
            job = replace(job, burst_buffer_gb=-(-amount // GB) if amount >= GB else 0)
        excess = beyond(job, workload.resources)
        if excess and not skip_too_large:
            raise InvalidInputError(f"--darshan: job {job.number}: {excess[0]}", excess[1], excess[2])
        too_large += bool(excess)
        asking += not excess and amount is not None and amount >= GB
        jobs += [] if excess else [job]
    known = {job.number for job in workload.jobs}
    if not jobs:
        raise InvalidInputError("--darshan", "at least one job that fits on the machine")
    unknown = sum(number not in known for number in moved)
    return DarshanRequests(replace(workload, jobs=tuple(jobs)), asking, small, unknown, too_large)
