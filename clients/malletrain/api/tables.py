"""Small tables for notebooks and terminals. Pure: everything that comes from users is escaped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from itertools import compress

_MAX_CELL = 200
"""Characters of a cell: names and reasons are of users, and may be long."""
_STYLE = "text-align: left; padding: 0.2em 0.8em 0.2em 0; vertical-align: top"


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML, without script or style sheet.

    Args:
        columns: Headings.
        rows: Cells, as many as there are headings.
    """
    head = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not rows:
        body = f'<tr><td style="{_STYLE}" colspan="{len(columns)}">no jobs</td></tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_html(facts: Mapping[str, str]) -> str:
    """Labels with values in HTML, those without a value left out."""
    rows = (
        f'<tr><th style="{_STYLE}">{escape(label[:_MAX_CELL])}</th>{_cell(value)}</tr>'
        for label, value in facts.items()
        if value
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text, columns aligned; control characters are shown as `?`."""
    if not rows:
        return "no jobs"
    cells = [list(columns), *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def changed_lines(
    columns: Sequence[str],
    before: Sequence[Sequence[str]] | None,
    rows: Sequence[Sequence[str]],
    ignored: Collection[str] = (),
) -> str:
    """The lines of a table in plain text that have changed; the whole table at first.

    Args:
        columns: Headings.
        before: The rows as they were shown before, as many; None: they were not.
        rows: Cells, as many as there are headings.
        ignored: Headings of columns that alone make no change.
    """
    text = table_text(columns, rows)
    if before is None:
        return text
    counted = [name not in ignored for name in columns]
    changed = (
        list(compress(old, counted)) != list(compress(new, counted)) for old, new in zip(before, rows, strict=True)
    )
    return "\n".join(compress(text.splitlines()[1:], changed))


def _cell(text: str) -> str:
    return f'<td style="{_STYLE}">{escape(_cut(text))}</td>'


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in _cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"
