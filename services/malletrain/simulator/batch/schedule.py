"""The schedule that a simulation produces, its statistics, and its files in CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.workload import BatchJob

# Jobs shorter than this would dominate the mean slowdown (Feitelson et al., "Theory and practice in parallel job
# scheduling", 1997).
SLOWDOWN_THRESHOLD_S = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """The run of one job.

    Attributes:
        start_s: Start in seconds after second 0 of the log.
        end_s: End in seconds after second 0 of the log; its nodes are free from then on.
        nodes: Indices of its nodes, counted from 0, as disjoint ascending ranges.
        reserved_s: Start of its first reservation, made when it was the head of the queue and did not fit; None if it
            had none.
    """

    job: BatchJob
    start_s: float
    end_s: float
    nodes: tuple[range, ...]
    reserved_s: float | None = None

    @property
    def wait_s(self) -> float:
        """Seconds from submission to start."""
        return self.start_s - self.job.submit_s

    @property
    def killed(self) -> bool:
        """Whether it was killed at its estimate."""
        return self.end_s < self.start_s + self.job.run_s

    @property
    def bounded_slowdown(self) -> float:
        """max(1, (wait + run) / max(run, 10 s))."""
        run_s = self.end_s - self.start_s
        return max(1.0, (self.wait_s + run_s) / max(run_s, SLOWDOWN_THRESHOLD_S))


@dataclass(frozen=True)
class Schedule:
    """The runs of a workload.

    Attributes:
        policy: Name of the policy.
        nodes: Nodes of the machine.
        runs: One per job, by start; those of one instant in the order in which the scheduler started them.
        unix_start_s: Second 0 of the log in seconds since the epoch; None if it is not known.
    """

    policy: str
    nodes: int
    runs: tuple[BatchRun, ...]
    unix_start_s: int | None = None

    @property
    def first_submit_s(self) -> float:
        """First submission, seconds."""
        return min(run.job.submit_s for run in self.runs)

    @property
    def first_submit_at(self) -> str | None:
        """First submission in ISO 8601, UTC; None if the log does not say."""
        if self.unix_start_s is None:
            return None
        return (_EPOCH + timedelta(seconds=self.unix_start_s + self.first_submit_s)).isoformat()

    @property
    def last_submit_s(self) -> float:
        """Last submission, seconds."""
        return max(run.job.submit_s for run in self.runs)

    @property
    def last_end_s(self) -> float:
        """End of the last run, seconds."""
        return max(run.end_s for run in self.runs)


@dataclass(frozen=True, slots=True)
class ScheduleStatistics:
    """Statistics of a schedule.

    Attributes:
        jobs: Number of jobs.
        killed: Number of jobs that were killed at their estimate.
        makespan_s: From the first submission to the last end, seconds.
        utilisation: Node-seconds in runs by those of the machine over the makespan, 0 to 1.
        mean_wait_s: Mean wait, seconds.
        median_wait_s: Median wait, seconds.
        wait_95_s: The wait that 95 % of the jobs do not exceed (nearest rank), seconds.
        mean_bounded_slowdown: Mean of max(1, (wait + run) / max(run, 10 s)).
    """

    jobs: int
    killed: int
    makespan_s: float
    utilisation: float
    mean_wait_s: float
    median_wait_s: float
    wait_95_s: float
    mean_bounded_slowdown: float


def statistics_of(schedule: Schedule) -> ScheduleStatistics:
    """The statistics of a schedule."""
    waits = sorted(run.wait_s for run in schedule.runs)
    makespan_s = schedule.last_end_s - schedule.first_submit_s
    work = math.fsum(run.job.nodes * (run.end_s - run.start_s) for run in schedule.runs)
    return ScheduleStatistics(
        jobs=len(schedule.runs),
        killed=sum(run.killed for run in schedule.runs),
        makespan_s=makespan_s,
        utilisation=work / (makespan_s * schedule.nodes),
        mean_wait_s=fmean(waits),
        median_wait_s=median(waits),
        wait_95_s=waits[math.ceil(0.95 * len(waits)) - 1],
        mean_bounded_slowdown=fmean(run.bounded_slowdown for run in schedule.runs),
    )


def node_names(nodes: int) -> tuple[str, ...]:
    """Names of a machine's nodes: n0001, n0002, …, with equally many digits."""
    width = max(4, len(str(nodes)))
    return tuple(f"n{number:0{width}}" for number in range(1, nodes + 1))


_COLUMNS: Mapping[str, Callable[[BatchRun], float | int | bool | None]] = MappingProxyType(
    {
        "job": lambda run: run.job.number,
        "line": lambda run: run.job.line,
        "submit_s": lambda run: run.job.submit_s,
        "start_s": lambda run: run.start_s,
        "end_s": lambda run: run.end_s,
        "wait_s": lambda run: run.wait_s,
        "estimate_s": lambda run: run.job.estimate_s,
        "reserved_s": lambda run: run.reserved_s,
        "killed": lambda run: run.killed,
        "nodes": lambda run: run.job.nodes,
    }
)
_NODE_LIST = "node_list"
SUFFIXES = (".csv", ".csv.gz", ".parquet")


def check_schedule_name(path: Path, field: str) -> None:
    """Refuse a file name that `write_schedule` can't write, before the simulation.

    Raises:
        InvalidInputError: the name has another suffix, or its folder does not exist.
    """
    if not path.name.endswith(SUFFIXES):
        raise InvalidInputError(field, f"a name that ends in {', '.join(SUFFIXES)}", str(path))
    if not path.parent.is_dir():
        raise InvalidInputError(field, "a file in a folder that exists", str(path))


def write_schedule(schedule: Schedule, path: Path) -> None:
    """Write one row per job, in order of start. All times are seconds after the log's second 0.

    Raises:
        InvalidInputError: the name does not end in .csv, .csv.gz or .parquet, or pyarrow is missing for the latter.
        OSError: the file can't be written.
    """
    check_schedule_name(path, "schedule")
    if path.suffix == ".parquet":
        _write_parquet(schedule, path)
        return
    content = _csv(schedule).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def node_list(nodes: tuple[range, ...], names: tuple[str, ...]) -> str:
    """Nodes in hostlist notation: `n[0001-0004,0009]`, or `n0009` for one node."""
    if len(nodes) == 1 and len(nodes[0]) == 1:
        return names[nodes[0].start]
    parts = []
    for part in nodes:
        first, last = names[part.start][1:], names[part.stop - 1][1:]
        parts.append(first if first == last else f"{first}-{last}")
    return f"n[{','.join(parts)}]"


def _csv(schedule: Schedule) -> str:
    names = node_names(schedule.nodes)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_COLUMNS, _NODE_LIST))
    for run in schedule.runs:
        writer.writerow((*(_text(value(run)) for value in _COLUMNS.values()), node_list(run.nodes, names)))
    return out.getvalue()


def _text(value: float | int | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if float(value).is_integer() else repr(value)


def _write_parquet(schedule: Schedule, path: Path) -> None:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise InvalidInputError("schedule", "a .csv name, or pyarrow for Parquet (it is not installed)") from error
    names = node_names(schedule.nodes)
    columns: dict[str, list[Any]] = {name: [value(run) for run in schedule.runs] for name, value in _COLUMNS.items()}
    columns[_NODE_LIST] = [node_list(run.nodes, names) for run in schedule.runs]
    # Explicit types: a column of nulls only would be inferred as null type.
    kinds = {"job": arrow.int64(), "line": arrow.int64(), "nodes": arrow.int64(), "killed": arrow.bool_()}
    kinds[_NODE_LIST] = arrow.string()
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in columns])
    parquet.write_table(arrow.table(columns, schema=schema), str(path))
