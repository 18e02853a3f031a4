"""`malletrain metrics ID`: what a job's script has logged of its training."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from malletrain.caller.metric_histories import metric_histories
from malletrain.cli.jobs.naming import JobArgument, job_of
from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.listing import ListingRow, ListingView, listing, print_listing
from malletrain.cli.shared.output import to_dict
from malletrain.cli.shared.stubs import connect
from malletrain.runtime.errors import NotFoundError, quoted
from malletrain.v1 import monitor_pb2

SPARKLINE_POINTS = 32
"""Most characters of a sparkline."""
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
    job_id: JobArgument,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="METRIC", help="Only this metric; may be repeated.")
    ] = None,
    *,
    view: ListingView,
) -> None:
    """Show what a job's script has logged of its training, e.g. its loss: a row for each point that is kept.

    Only its owner and operators are told.
    """
    with connect() as stubs:
        found_id = job_of(stubs, job_id, time.time())
        found = metric_histories(stubs, found_id, list(dict.fromkeys(name or ())))
    known = {history.name for history in found}
    if missing := [one for one in name or () if one not in known]:
        raise NotFoundError(f"{found_id} has logged no metric {quoted(missing[0])}")
    rows = [_row(history.name, point) for history in found for point in history.points]
    print_listing(_COLUMNS, rows, view, nothing=f"{found_id} has logged no metrics")


def history_in_words(history: monitor_pb2.MetricHistory) -> str:
    """The last value of a metric, and its course as a line of characters."""
    last = history.points[-1]
    course = sparkline([point.value for point in history.points], levels_of(_encoding()))
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


def _encoding() -> str | None:
    return sys.stdout.encoding


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=*#"
"""Where a terminal has no block characters."""


def sparkline(values: Sequence[float], levels: str = BLOCKS) -> str:
    """A character for each number: the lowest one for the least number, the highest one for the greatest.

    Args:
        values: Finite numbers.
        levels: Characters, from the lowest to the highest.
    """
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
