"""Reads `sacct --json`, as Slurm 21.08 to 25.05 print it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.json_values import JsonValue
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, Row, SkippedRow
from malletrain.simulator.traces.slurm_accounting import run_of

JOBS = "jobs"
"""Key of the jobs in the output."""


def read_sacct_json(values: Iterable[JsonValue], calendar: CalendarReader) -> Iterator[Row]:
    """Runs of jobs; their steps are within them.

    Args:
        values: Elements of `jobs`.
        calendar: Reads the times of the conversion: seconds since 1970.
    """
    for line, value in values:
        cells = cells_of(line, value)
        yield cells if isinstance(cells, SkippedRow | OtherRow) else run_of(line, *cells, calendar)


Cells = tuple[str, str, tuple[str, str], float | None, str]
"""Job, state, start and end, elapsed seconds and nodes, as `run_of` takes them."""


def cells_of(line: Line, value: object) -> Cells | SkippedRow | OtherRow:
    """What a job of the JSON says, as `sacct -P` prints it.

    Args:
        line: Where it stands.
        value: An element of `jobs`.
    """
    job = value if isinstance(value, dict) else {}
    time = job.get("time")
    if not isinstance(time, dict) or "start" not in time or "nodes" not in job:
        if job and "job_id" not in job:
            # An object of its own, such as an error or the query's metadata.
            return OtherRow("objects that are no jobs")
        expected = "a job with time.start, time.end and nodes, as `sacct --json` prints it"
        return SkippedRow("a job without times or nodes", InvalidInputError(line.place, expected))
    times = _text(number_of(time["start"])), _text(number_of(time.get("end")))
    elapsed_s = number_of(time.get("elapsed"))
    return str(job.get("job_id", "")), _state(job.get("state")), times, elapsed_s, _nodes(job["nodes"])


def number_of(value: Any) -> float | None:
    """A number, or one as an object that says whether it is set and whether it is infinite (from 23.11 on)."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        return None
    return float(value)


def _text(seconds: float | None) -> str:
    return f"{seconds:.0f}" if seconds else ""


def _state(state: Any) -> str:
    """The base state: a word (to 23.02), or the first of a list, flags after it (from 23.11 on)."""
    current = state.get("current") if isinstance(state, dict) else state
    if isinstance(current, list):
        current = current[0] if current else ""
    return current if isinstance(current, str) else ""


def _nodes(nodes: Any) -> str:
    if isinstance(nodes, list):
        nodes = ",".join(name for name in nodes if isinstance(name, str))
    return nodes if isinstance(nodes, str) else ""
