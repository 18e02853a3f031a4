"""How the command prints: tables for people, JSON for scripts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, cast

import typer
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.cli.shared.layout import Column, ListingCell, first_line, fit, join_cells, lines_of, tab_separated
from malletrain.cli.shared.terminal import has_terminal, terminal_width, visible, write_styled
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import resources_pb2


def tell(text: str) -> None:
    """Say something on standard error."""
    typer.echo(text, err=True)


JsonOption = typer.Option("--json", help="Print JSON instead of a table.")


class JsonForm(StrEnum):
    """The form in which messages are printed as JSON."""

    PLAIN = "plain"
    PROTO = "proto"


_json_form: ContextVar[JsonForm] = ContextVar("json form", default=JsonForm.PLAIN)


def choose_json_form(form: JsonForm) -> None:
    """Have all messages printed in this form: `--json=proto` stands before any verb's own options are known."""
    _json_form.set(form)


def to_dict(message: Message) -> dict[str, Any]:
    """A message as the command prints it as JSON, with default values.

    All numbers are numbers, also those of 64 bits, and values of enumerations have no prefix: RUNNING instead of
    JOB_STATE_RUNNING. With `--json=proto` it is protobuf JSON, which has both.
    """
    document = to_proto_dict(message)
    if _json_form.get() is JsonForm.PLAIN:
        _make_plain(document, cast("Descriptor", message.DESCRIPTOR))
    return document


def to_proto_dict(message: Message) -> dict[str, Any]:
    """A message as protobuf JSON, with default values."""
    from google.protobuf.json_format import MessageToDict  # tables start sooner without it

    document: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    return document


def _make_plain(document: dict[str, Any], descriptor: Descriptor) -> None:
    """Change protobuf JSON to plain JSON, in place."""
    for field in descriptor.fields:
        value = document.get(field.json_name)
        if value is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = field.message_type.fields_by_name["value"]
            document[field.json_name] = {key: _plain(entry, values) for key, entry in value.items()}
        elif isinstance(value, list):
            document[field.json_name] = [_plain(entry, field) for entry in value]
        else:
            document[field.json_name] = _plain(value, field)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        if not field.message_type.full_name.startswith("google.protobuf."):  # times are texts
            _make_plain(value, field.message_type)
        return value
    if field.enum_type is not None:
        return str(value).removeprefix(_prefix(field.enum_type.name))
    return int(value) if field.cpp_type in _LONG else value


_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def _prefix(name: str) -> str:
    """What the values of an enumeration begin with: JOB_STATE_ for JobState."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper() + "_"


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    import json  # tables start sooner without it

    typer.echo(json.dumps(value, indent=2))


def hint_at_compiler() -> None:
    """Say on standard error how a simulation gets faster, where Numba is not installed."""
    if find_spec("numba") is None:
        typer.echo("note: with Numba this is about ten times as fast: pip install 'malletrain[sim]'", err=True)


def print_table(
    columns: Sequence[str | Column], rows: Iterable[Sequence[str]], title: str | None = None, *, one_line: bool = False
) -> None:
    """Print a table on standard output. On a terminal, long cells fold; into a pipe go whole rows, tabs between cells.

    Args:
        columns: Headings, or columns.
        rows: Cells, as many as there are headings.
        title: Heading of the table.
        one_line: One line for each row: the last column is cut to what a terminal has left for it.
    """
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    if one_line:
        heads[-1] = replace(heads[-1], cut=True)
    # Escaped before columns are measured: what is escaped takes more room.
    escaped = [[visible(cell) for cell in row] for row in rows]
    if one_line:
        escaped = [[*row[:-1], first_line(row[-1])] for row in escaped]
    if title:
        write_styled([(title, "bold")])
    print_rows(heads, escaped)


def print_rows(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    styles: Sequence[Sequence[str]] = (),
    *,
    headers: bool = True,
) -> None:
    """Print rows whose cells have nothing to escape: on a terminal as they fit, else whole with tabs between cells.

    Args:
        rows: Cells, one for each column.
        styles: The style of each cell; empty: none has one.
        headers: Whether the names of the columns come first.
    """
    names = [column.name for column in columns]
    if not has_terminal():
        for line in ([names, *rows]) if headers else rows:
            typer.echo(tab_separated(line))
        return
    layout = fit(columns, rows, terminal_width())
    if headers:
        for line in lines_of(columns, names, layout):
            write_styled([(join_cells(line), "bold")])
    for number, row in enumerate(rows):
        line_styles = [styles[number][index] if styles else "" for index in layout.shown]
        for line in lines_of(columns, row, layout):
            parts: list[tuple[str, str]] = []
            for cell, style in zip(line, line_styles, strict=True):
                parts += [(join_cells(("", "")), ""), (cell, style)] if parts else [(cell, style)]
            write_styled(parts)


def one_line(text: str) -> str:
    """A text of several lines, such as the tail of a log, in one."""
    return " ".join(text.split())


def state_name(state: resources_pb2.JobState.ValueType) -> str:
    """Name of a state without its prefix: `RUNNING` for JOB_STATE_RUNNING."""
    return resources_pb2.JobState.Name(state).removeprefix("JOB_STATE_")


def state_cell(state: resources_pb2.JobState.ValueType) -> ListingCell:
    """A state as a listing shows it."""
    name = state_name(state)
    return ListingCell(name, style=_STATE_STYLES.get(name, ""))


_STATE_STYLES = {
    "QUEUED": "yellow",
    "WAITING": "yellow",
    "STARTING": "cyan",
    "RESCALING": "cyan",
    "RUNNING": "green",
    "STOPPING": "cyan",
    "COMPLETED": "blue",
    "FAILED": "red",
    "CANCELLED": "dim",
}


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


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str, option: str) -> float:
    """Seconds in a text such as `90s`, `30m`, `24h`, `7d`.

    Raises:
        InvalidInputError: the text has another form; names the option.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidInputError(option, "a time above 0 such as 90s, 30m, 24h or 7d", text)
    return seconds
