"""`malletrain metrics ID...`: what jobs' scripts have logged of their trainings."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from malletrain.caller.metric_histories import metric_histories
from malletrain.cli.jobs.job_output import parameters_in_words
from malletrain.cli.jobs.naming import complete_job, job_of, jobs_meant
from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow, ListingView, listing, print_listing
from malletrain.cli.shared.output import state_cell, state_name, to_dict
from malletrain.cli.shared.stubs import connect
from malletrain.runtime.errors import InvalidInputError, NotFoundError, quote
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
    with_metric = [logged for logged in jobs if metric in logged.histories]
    columns = [
        Column("step", right=True),
        *(Column(logged.job.id, rank=1 + place, right=True) for place, logged in enumerate(with_metric)),
    ]
    by_step: dict[int, dict[str, float]] = {}
    for logged in with_metric:
        for point in logged.histories[metric].points:
            by_step.setdefault(point.step, {})[logged.job.id] = point.value
    rows = []
    for step, values in sorted(by_step.items()):
        cells = [_number(values[each.job.id]) if each.job.id in values else "" for each in with_metric]
        rows.append(ListingRow([ListingCell(f"{step:,}", step), *cells], partial(dict, step=step, values=values)))
    return columns, rows


def _number(value: float) -> ListingCell:
    return ListingCell(f"{value:g}", value)


SPARKLINE_POINTS = 32
"""Most characters of a sparkline."""
_MIN_POINTS = 2
"""That Monitor can be asked for; the last of them is the last one that there is."""
_COLUMNS = (
    Column("metric"),
    Column("step", right=True),
    Column("time"),
    Column("value", right=True),
    Column("least", rank=2, right=True),
    Column("most", rank=2, right=True),
    Column("values", rank=3, right=True),
)


@listing
def metrics(
    job_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Jobs (also by their names), arrays, fleets, or names of searches.",
            autocompletion=complete_job,
        ),
    ],
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="METRIC", help="Only this metric; may be repeated.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Of several jobs, all points of one metric: a column for each job.")
    ] = False,
    *,
    view: ListingView,
) -> None:
    """Show what jobs' scripts have logged, e.g. their loss: of one job each point that is kept, of several the last.

    Only their owner and operators are told.
    """
    names = list(dict.fromkeys(name or ()))
    with connect() as stubs:
        compared = jobs_meant(stubs, job_ids)
        if compared is not None:
            points = 0 if curves else _MIN_POINTS
            logged = [logged_job(job, metric_histories(stubs, job.id, names, max_points=points)) for job in compared]
            _compare(logged, names, curves, view)
            return
        if curves:
            raise InvalidInputError("--curves", "several jobs, an array or a search")
        found_id = job_of(stubs, job_ids[0], time.time())
        histories = metric_histories(stubs, found_id, names)
    known = {history.name for history in histories}
    if missing := [one for one in names if one not in known]:
        raise NotFoundError(f"{found_id} has logged no metric {quote(missing[0])}")
    rows = [_row(history.name, point) for history in histories for point in history.points]
    print_listing(_COLUMNS, rows, view, nothing=f"{found_id} has logged no metrics")


def _compare(jobs: Sequence[LoggedJob], names: Sequence[str], curves: bool, view: ListingView) -> None:
    known = metric_names(jobs)
    if missing := [one for one in names if one not in known]:
        raise NotFoundError(f"none of these jobs has logged a metric {quote(missing[0])}")
    nothing = "these jobs have logged no metrics"
    if not curves:
        columns, rows = last_values(jobs)
        print_listing(columns, rows if known else (), view, nothing=nothing)
        return
    if len(known) > 1:
        raise InvalidInputError("--curves", f"--name with one of {', '.join(known)}")
    columns, rows = courses(jobs, known[0] if known else "")
    print_listing(columns, rows, view, nothing=nothing)


def history_in_words(history: monitor_pb2.MetricHistory) -> str:
    """The last value of a metric, and its course as a line of characters."""
    last = history.points[-1]
    course = sparkline([point.value for point in history.points], levels_of(sys.stdout.encoding))
    return f"{last.value:g} at step {last.step:,}  {course}"


def history_facts(histories: Sequence[monitor_pb2.MetricHistory], others: Sequence[str]) -> dict[str, str]:
    """A row for each metric. The script chooses its name, which must not stand in place of another row."""
    return {
        f"metric {history.name}" if history.name in others else history.name: history_in_words(history)
        for history in histories
        if history.points
    }


def _row(name: str, point: monitor_pb2.MetricPoint) -> ListingRow:
    at = datetime.fromtimestamp(point.unix_seconds, UTC)
    cells: tuple[ListingCell | str, ...] = (
        name,
        ListingCell(f"{point.step:,}", point.step),
        ListingCell(f"{at.astimezone():%Y-%m-%d %H:%M:%S}", at.isoformat(timespec="milliseconds")),
        *(ListingCell(f"{value:g}", value) for value in (point.value, point.least, point.most)),
        ListingCell(f"{point.values:,}", point.values),
    )
    return ListingRow(cells, lambda: {"metric": name, **to_dict(point)})


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=*#"
"""Where a terminal has no block characters."""


def sparkline(values: Sequence[float], levels: str = BLOCKS) -> str:
    """A character for each number: the lowest one for the least number, the highest one for the greatest."""
    if not values:
        return ""
    # Halved, since the distance of two finite numbers may be none.
    least, most = min(values) / 2, max(values) / 2
    if least == most:
        return levels[0] * len(values)
    top = len(levels) - 1
    return "".join(levels[round((value / 2 - least) / (most - least) * top)] for value in values)


def levels_of(encoding: str | None) -> str:
    """The characters that an encoding of a terminal has."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII_LEVELS
    return BLOCKS
