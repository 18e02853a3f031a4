"""How the command prints: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table

from malletrain.v1 import resources_pb2

_WIDE = 160

JsonOption = typer.Option("--json", help="Print JSON instead of a table.")


def to_dict(message: Message) -> dict[str, Any]:
    """The protobuf-JSON form, default values included."""
    found: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    return found


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    typer.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table on standard output; long cells fold rather than vanish."""
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Into a file or a pipe there is no width to keep to.
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


def state_name(state: resources_pb2.JobState.ValueType) -> str:
    """`RUNNING` for JOB_STATE_RUNNING."""
    return resources_pb2.JobState.Name(state).removeprefix("JOB_STATE_")


def ago(stamp: Timestamp, now: float) -> str:
    """How long before `now` (seconds since the epoch) a time stamp lies, e.g. `3m 20s`."""
    return duration(max(0.0, now - stamp.ToNanoseconds() / 1e9))


def duration(seconds: float) -> str:
    """`45s`, `3m 20s`, `2h 05m`, `3d 04h`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
