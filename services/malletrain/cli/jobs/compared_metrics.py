"""What several jobs have logged, side by side: the last values of each, or the courses of one metric. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from malletrain.cli.jobs.job_output import parameters_in_words
from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow
from malletrain.cli.shared.output import state_cell, state_name
from malletrain.v1 import monitor_pb2, resources_pb2

_OWN = ("job", "name", "parameters", "state")
_JOB_COLUMNS = (
    Column("job"),
    Column("name", rank=2, cut=True),
    Column("parameters", rank=1, cut=True, only_filled=True),
    Column("state", rank=3),
)
_FIRST_RANK = 4
"""Of metrics: where a terminal is narrow, the last ones go first."""


@dataclass(frozen=True)
class LoggedJob:
    """A job, and what its script has logged.

    Attributes:
        job: The job.
        histories: By name of the metric; those without a point are left out.
    """

    job: resources_pb2.Job
    histories: Mapping[str, monitor_pb2.MetricHistory]


def logged_job(job: resources_pb2.Job, histories: Sequence[monitor_pb2.MetricHistory]) -> LoggedJob:
    """A job with what Monitor says of it."""
    return LoggedJob(job, {history.name: history for history in histories if history.points})


def metric_names(jobs: Sequence[LoggedJob]) -> list[str]:
    """All metrics that one of the jobs has logged, by name."""
    return sorted({name for logged in jobs for name in logged.histories})


def last_values(jobs: Sequence[LoggedJob]) -> tuple[list[Column], list[ListingRow]]:
    """A row for each job, with the last value of each metric."""
    names = metric_names(jobs)
    # Scripts choose the names, which must not stand for another column.
    heads = [f"metric {name}" if name in _OWN else name for name in names]
    columns = [*_JOB_COLUMNS, *(Column(head, rank=_FIRST_RANK + place, right=True) for place, head in enumerate(heads))]
    return columns, [_last_row(logged, names) for logged in jobs]


def _last_row(logged: LoggedJob, names: Sequence[str]) -> ListingRow:
    job = logged.job
    last = {name: history.points[-1] for name, history in logged.histories.items()}
    cells: list[ListingCell | str] = [
        job.id,
        job.spec.name,
        parameters_in_words(job.spec.array_parameters),
        state_cell(job.state),
        *(_number(last[name].value) if name in last else "" for name in names),
    ]
    document = {
        "job": job.id,
        "name": job.spec.name,
        "parameters": dict(job.spec.array_parameters),
        "state": state_name(job.state),
        "metrics": {name: {"step": point.step, "value": point.value} for name, point in sorted(last.items())},
    }
    return ListingRow(cells, lambda: document)


def courses(jobs: Sequence[LoggedJob], metric: str) -> tuple[list[Column], list[ListingRow]]:
    """A row for each step at which one of the jobs has a point of a metric, with a column for each job.

    Where more was logged than is kept, jobs have points at different steps, and cells between these are empty.
    """
    shown = [logged for logged in jobs if metric in logged.histories]
    columns = [
        Column("step", right=True),
        *(Column(logged.job.id, rank=1 + place, right=True) for place, logged in enumerate(shown)),
    ]
    by_step: dict[int, dict[str, float]] = {}
    for logged in shown:
        for point in logged.histories[metric].points:
            by_step.setdefault(point.step, {})[logged.job.id] = point.value
    rows = []
    for step, values in sorted(by_step.items()):
        cells = [_number(values[each.job.id]) if each.job.id in values else "" for each in shown]
        rows.append(ListingRow([ListingCell(f"{step:,}", step), *cells], partial(_document, step, values)))
    return columns, rows


def _document(step: int, values: Mapping[str, float]) -> dict[str, object]:
    return {"step": step, "values": dict(values)}


def _number(value: float) -> ListingCell:
    return ListingCell(f"{value:g}", value)
