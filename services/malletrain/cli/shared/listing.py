"""Listings: the same rows as a table, as CSV, as JSON, or as names alone, sorted, limited, and again and again."""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

from malletrain.cli.shared.layout import Column, ListingCell
from malletrain.cli.shared.output import print_json, print_rows
from malletrain.cli.shared.terminal import clear_screen, show_interrupt_as_end, visible
from malletrain.common.csv_text import as_csv
from malletrain.runtime.errors import InvalidInputError, MalleTrainError

_WATCH_SECONDS = 2.0
_SAYS_NOTHING = ("", "-")
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")


class Output(StrEnum):
    """How a listing is printed."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class ListingView:
    """What the caller wants to see of a listing.

    Attributes:
        output: In which form.
        headers: Whether a table, or CSV, begins with the names of its columns.
        sort: Name of the column to sort by, after `-` from the last to the first; empty: the service's order.
        limit: Most rows; 0: all.
    """

    output: Output = Output.TABLE
    headers: bool = True
    sort: str = ""
    limit: int = 0

    @property
    def as_json(self) -> bool:
        """Whether JSON is wanted."""
        return self.output is Output.JSON


@dataclass(frozen=True)
class ListingRow:
    """A row of a listing.

    Attributes:
        cells: One for each column; the first is what names the row.
        document: Makes what JSON has of it.
    """

    cells: Sequence[ListingCell | str]
    document: Callable[[], Any]


def print_listing(columns: Sequence[Column], rows: Sequence[ListingRow], view: ListingView, *, nothing: str) -> None:
    """Print a listing as it is wanted.

    Args:
        view: What is wanted of it.
        nothing: What is said, on standard error, where there are no rows.

    Raises:
        InvalidInputError: there is no column to sort by as the view wants.
    """
    listed = _select_rows(columns, rows, view)
    if view.as_json:
        print_json([row.document() for row in listed])
        return
    if not listed:
        typer.echo(nothing, err=True)
    if view.output is Output.NAME:
        for row in listed:
            typer.echo(_text(row.cells[0]))
    elif view.output is Output.CSV:
        _print_csv(columns, listed, headers=view.headers)
    elif listed:
        _print_table(columns, listed, view)


def _select_rows(columns: Sequence[Column], rows: Sequence[ListingRow], view: ListingView) -> list[ListingRow]:
    """The rows that are wanted, in the wanted order."""
    ordered = list(rows)
    if view.sort:
        name = view.sort.removeprefix("-").casefold()
        known = [column.name for column in columns]
        if name not in [entry.casefold() for entry in known]:
            raise InvalidInputError("--sort", f"one of {', '.join(known)}, after - for the other order", view.sort)
        index = next(index for index, entry in enumerate(known) if entry.casefold() == name)
        ordered.sort(key=lambda row: _sort_key(row.cells[index]), reverse=view.sort.startswith("-"))
    return ordered[: view.limit] if view.limit else ordered


def _sort_key(cell: ListingCell | str) -> tuple[int, float, str]:
    """Numbers before texts, and nothing last; a text that begins with a number counts as this."""
    value = _value(cell)
    if isinstance(value, int | float):
        return 0, float(value), ""
    number = _NUMBER.match(value)
    if number:
        return 0, float(number[0].replace(",", "")), value
    return (1, 0.0, value.casefold()) if value else (2, 0.0, "")


def _text(cell: ListingCell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _value(cell: ListingCell | str) -> float | str:
    return cell if isinstance(cell, str) else cell.text if cell.value is None else cell.value


def _print_csv(columns: Sequence[Column], rows: Sequence[ListingRow], *, headers: bool) -> None:
    text = as_csv({column.name: [_value(row.cells[index]) for row in rows] for index, column in enumerate(columns)})
    typer.echo(text if headers else text.partition("\n")[2], nl=False)


def _print_table(columns: Sequence[Column], rows: Sequence[ListingRow], view: ListingView) -> None:
    wide = view.output is Output.WIDE
    visible_columns = [
        index
        for index, column in enumerate(columns)
        if (wide or not column.only_wide)
        and not (column.only_filled and all(_text(row.cells[index]) in _SAYS_NOTHING for row in rows))
    ]
    texts = [[visible(_text(row.cells[index])) for index in visible_columns] for row in rows]
    styles = [[_style(row.cells[index]) for index in visible_columns] for row in rows]
    print_rows([columns[index] for index in visible_columns], texts, styles, headers=view.headers)


def _style(cell: ListingCell | str) -> str:
    return "" if isinstance(cell, str) else cell.style


_OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="table; wide: all columns; name: only what names each row; json; csv."),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
_NoHeadersOption = Annotated[bool, typer.Option("--no-headers", help="No line with the names of the columns.")]
_SortOption = Annotated[
    str, typer.Option("--sort", metavar="COLUMN", help="Sort by this column; -COLUMN: the other way round.")
]
_LimitOption = Annotated[int, typer.Option("--limit", min=0, help="Most rows; 0: all.")]
_WatchOption = Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")]


def listing(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb that lists something, with the options of all listings. It takes a ListingView as `view`."""
    hints = get_type_hints(verb, include_extras=True)
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def run(*arguments: Any, **options: Any) -> None:
        output, as_json = options.pop("output", Output.TABLE), options.pop("as_json", False)
        if as_json and output not in (Output.TABLE, Output.JSON):
            raise InvalidInputError("--json", f"one of --json and -o {output}")
        view = ListingView(
            Output.JSON if as_json else output,
            not options.pop("no_headers", False),
            options.pop("sort", ""),
            options.pop("limit", 0),
        )
        if options.pop("watch", False):
            _again_and_again(lambda: verb(*arguments, **options, view=view))
        else:
            verb(*arguments, **options, view=view)

    added = {
        "output": (_OutputOption, Output.TABLE),
        "as_json": (_JsonOption, False),
        "no_headers": (_NoHeadersOption, False),
        "sort": (_SortOption, ""),
        "limit": (_LimitOption, 0),
        "watch": (_WatchOption, False),
    }
    own = [
        parameter.replace(annotation=hints[name]) for name, parameter in signature.parameters.items() if name != "view"
    ]
    further = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in added.items()
    ]
    del hints["view"]
    run.__annotations__ = hints | {name: hint for name, (hint, _) in added.items()}
    run.__signature__ = signature.replace(parameters=[*own, *further])  # type: ignore[attr-defined]
    return run


def _again_and_again(show: Callable[[], None]) -> None:
    """Show something every few seconds until the user ends it; a service that does not answer is waited for."""
    with show_interrupt_as_end():
        while True:
            clear_screen()
            try:
                show()
            except InvalidInputError:
                raise
            except MalleTrainError as error:
                typer.echo(f"error: {error}", err=True)
            time.sleep(_WATCH_SECONDS)
