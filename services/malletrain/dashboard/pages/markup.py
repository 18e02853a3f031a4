"""What a page is made of, for its template, and its tables and tiles as HTML. All text is escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

STATES = ("running", "rescaling", "starting", "stopping", "waiting", "queued", "completed", "failed", "cancelled")
"""Of jobs, by which their tables choose rows."""


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        kind: `tiles`, `figure`, `table`, `facts`, `text`, `log`, `form`, `choice` or `links`.
        id: Identifier of the region, or name of the figure.
        title: Its heading; empty: none.
        note: What it means, in a sentence or two.
        headings: Of the columns of a table.
        numbers: Columns of a table that are numbers.
        half: Whether two such sections may stand side by side.
        states: A table that can be sorted and searched: the states of its rows, by which they can be chosen, too.
    """

    kind: str
    id: str
    title: str = ""
    note: str = ""
    headings: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    half: bool = False
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceForm:
    """A form that leads to another address of a page by one number or text.

    Attributes:
        name: Of the argument.
        label: What the number or text is.
        value: What is chosen; empty: nothing.
        action: Address of the page.
        hidden: Names and values that the address keeps.
        number: Whether it is a number, 1 at least.
    """

    name: str
    label: str
    value: str
    action: str
    hidden: tuple[tuple[str, str], ...]
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it says.
        link: Address that it leads to; empty: none.
        number: Whether it is a number, written to the right.
        colour: Of a square before the text; empty: none.
        share: Length of a bar behind the text, 0 to 1; None: none.
        hint: What is shown when it is pointed at.
        sentence: Whether it is a sentence, which needs room.
        wraps: Whether it may take several lines though it is a number.
        state: A job's state in small letters, if that is what it says; it has a colour.
        order: By what the rows are sorted; None: by the text.
    """

    text: str
    link: str = ""
    number: bool = False
    colour: str = ""
    share: float | None = None
    hint: str = ""
    sentence: bool = False
    wraps: bool = False
    state: str = ""
    order: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        id: Identifier, unique on the page.
        chosen: Whether it is what the viewer has chosen.
    """

    id: str
    cells: tuple[Cell, ...]
    chosen: bool = False


@dataclass(frozen=True)
class Regions:
    """The parts of a page that change.

    Attributes:
        texts: HTML by identifier.
        tables: Rows by identifier of the table's body.
        empty: What a table without rows says, by its identifier; `none` where nothing is named.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    empty: Mapping[str, str] = field(default_factory=dict)

    def body(self, name: str) -> str:
        """The rows of a table, as they stand in its `tbody`."""
        return body(self.tables[name], 99, self.empty.get(name, "none"))


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number for people: thousands apart, a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share for people."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """A duration for people: `0.4 s`, `45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def number_cells(*texts: str) -> tuple[Cell, ...]:
    """Cells of a table that are numbers."""
    return tuple(Cell(text, number=True) for text in texts)


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Figures at the top of a page.

    Args:
        entries: What it is, the figure, and a note, of each.
    """
    shape = Markup('<div class="tile"><dt>{}</dt><dd><b>{}</b><span>{}</span></dd></div>')
    return str(Markup("").join(shape.format(*entry) for entry in entries))


def paragraphs(lines: Iterable[str]) -> str:
    """Lines of text."""
    return str(Markup("").join(Markup("<p>{}</p>").format(line) for line in lines))


def facts(entries: Iterable[tuple[str, str]]) -> str:
    """Names and values of a list of facts."""
    return str(Markup("").join(Markup("<dt>{}</dt><dd>{}</dd>").format(*entry) for entry in entries))


def links(entries: Iterable[tuple[str, str, bool]]) -> str:
    """Links side by side: text, address and whether it is the present one."""
    shape, here = Markup('<a href="{1}">{0}</a>'), Markup('<a href="{1}" aria-current="true">{0}</a>')
    return str(Markup(" ").join((here if current else shape).format(text, link) for text, link, current in entries))


def row_cells(row: Row) -> str:
    """The cells of a row, as they stand in its `tr`."""
    return str(Markup("").join(_cell(cell) for cell in row.cells))


def body(rows: Sequence[Row], columns: int, empty: str = "none") -> str:
    """The rows of a table, as they stand in its `tbody`."""
    if not rows:
        return str(Markup('<tr><td colspan="{}" class="none">{}</td></tr>').format(columns, empty))
    shape = Markup('<tr id="{}"{}>{}</tr>')
    chosen = Markup(' class="chosen"')
    return str(
        Markup("").join(shape.format(row.id, chosen if row.chosen else "", Markup(row_cells(row))) for row in rows)
    )


def changes(before: Regions, after: Regions) -> list[tuple[str, str]]:
    """What to write where: identifiers and HTML. Only rows that differ, where a table has the same rows as before."""
    writes = [(name, html) for name, html in after.texts.items() if before.texts.get(name) != html]
    for name, rows in after.tables.items():
        old = before.tables.get(name)
        if old is not None and [_key(row) for row in old] == [_key(row) for row in rows]:
            writes += [(row.id, row_cells(row)) for was, row in zip(old, rows, strict=True) if was != row]
        else:
            writes.append((name, after.body(name)))
    return writes


def _key(row: Row) -> tuple[str, bool]:
    return row.id, row.chosen


def _cell(cell: Cell) -> Markup:
    content = escape(cell.text)
    if cell.link:
        content = Markup('<a href="{}">{}</a>').format(cell.link, content)
    if cell.colour:
        content = Markup('<i class="swatch" style="background:{}"></i>{}').format(cell.colour, content)
    kinds = (("number", cell.number), ("sentence", cell.sentence), ("wraps", cell.wraps))
    names = " ".join(name for name, holds in kinds if holds)
    attributes = Markup(' class="{}"').format(names) if names else Markup("")
    if cell.share is not None:
        width = f"{100 * min(max(cell.share, 0.0), 1.0):.0f}"
        content = Markup('<span class="bar" style="--share:{}%">{}</span>').format(width, content)
    if cell.state:
        content = Markup('<span class="state {0}" data-state="{0}">{1}</span>').format(cell.state, content)
    if cell.order is not None:
        attributes += Markup(' data-order="{}"').format(f"{cell.order:.17g}")
    if cell.hint:
        attributes += Markup(' title="{}"').format(cell.hint)
    return Markup("<td{}>{}</td>").format(attributes, content)
