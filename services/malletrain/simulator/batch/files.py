"""Writes schedules as CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.schedule import BatchRun, Schedule, node_names

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
