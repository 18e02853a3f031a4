"""How the command prints: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from malletrain.cli.shared.terminal import open_console, visible
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import resources_pb2

_WIDE = 160
_BORDER_CELLS = 3
"""A border and a space on either side of each column's text."""
_MIN_CELLS = 24
"""What is left of a column that is cut, however narrow the terminal is."""

JsonOption = typer.Option("--json", help="Print JSON instead of a table.")


def to_dict(message: Message) -> dict[str, Any]:
    """A message as protobuf JSON, with default values."""
    found: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    return found


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2))


def hint_at_compiler() -> None:
    """Say on standard error how a simulation gets faster, where Numba is not installed."""
    if find_spec("numba") is None:
        typer.echo("note: with Numba this is about ten times as fast: pip install 'malletrain[sim]'", err=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *, one_line: bool = False
) -> None:
    """Print a table on standard output. Long cells fold rather than vanish.

    Args:
        columns: Headings.
        rows: Cells, as many as there are headings.
        title: Heading of the table.
        one_line: One line for each row: the last column is cut to what a terminal has left for it. Nothing is cut where
            there is no terminal, and so no width to keep to.
    """
    console = open_console()
    # Escaped before columns are measured: what is escaped takes more room.
    shown = ([visible(cell) for cell in row] for row in rows)
    cells = [[*row[:-1], first_line(row[-1]) if one_line else row[-1]] for row in shown]
    *others, last = (max(cell_len(line) for line in column) for column in zip(columns, *cells, strict=True))
    borders = _BORDER_CELLS * len(columns) + 1
    if not console.is_terminal:
        console = open_console(width=max(_WIDE, sum(others) + last + borders) if one_line else _WIDE)
    left = max(console.width - sum(others) - borders, _MIN_CELLS)
    if one_line:
        cells = [[*row[:-1], shorten(row[-1], left)] for row in cells]
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def first_line(text: str) -> str:
    """The first line of a text: reasons of failures go on with a job's log."""
    return text.partition("\n")[0].rstrip()


def shorten(text: str, cells: int) -> str:
    """The first line of a text, cut to a number of terminal cells and marked by an ellipsis if it was."""
    line = first_line(text)
    if cell_len(line) <= cells:
        return line
    return set_cell_size(line, cells - 1).rstrip() + "…"


def one_line(text: str) -> str:
    """A text of several lines, such as the tail of a log, in one."""
    return " ".join(text.split())


def state_name(state: resources_pb2.JobState.ValueType) -> str:
    """Name of a state without its prefix: `RUNNING` for JOB_STATE_RUNNING."""
    return resources_pb2.JobState.Name(state).removeprefix("JOB_STATE_")


def ago(stamp: Timestamp, now: float) -> str:
    """Time from a time stamp until `now` (seconds since the epoch), e.g. `3m 20s`."""
    return duration(max(0.0, now - unix_seconds(stamp)))


def duration(seconds: float) -> str:
    """A duration for people: `45s`, `3m 20s`, `2h 05m`, `3d 04h`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
