"""How tables are laid out: which columns a terminal has room for, how wide they are, and where cells fold. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_GAP = 2
"""Cells between two columns."""
_MIN_CUT = 12
"""What is left at least of a column that is cut."""
_MAX_WORD = 24
"""Longer words are broken, but for those of the first column."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading, by which it is sorted.
        rank: 0: it is always shown. Others are left out where a terminal is too narrow, the highest rank first.
        cut: Whether its cells are shortened where there is little room, rather than folded.
        only_wide: Whether it is shown only where all columns are asked for.
        only_filled: Whether it is left out where no row says anything there.
        right: Whether its cells end, rather than begin, at the same place.
    """

    name: str
    rank: int = 0
    cut: bool = False
    only_wide: bool = False
    only_filled: bool = False
    right: bool = False


@dataclass(frozen=True)
class ListingCell:
    """A cell that is more than its text.

    Attributes:
        text: What a table shows.
        value: What it is sorted by, and what CSV has; None: its text.
        style: How a terminal shows it, e.g. `green`.
    """

    text: str
    value: float | str | None = None
    style: str = ""


@dataclass(frozen=True)
class Layout:
    """A table as it fits."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Layout:
    """The columns that fit into a terminal, and how wide each is.

    Columns of the highest rank go until the others fit with their least widths: that of the first column is what its
    longest cell takes, so that what names a row is never broken; that of another its longest word, up to a limit.
    The room that is left goes to the columns that need it, least needy first.
    """
    cells = [[column.name, *(row[index] for row in rows)] for index, column in enumerate(columns)]
    wanted = [max(_longest_line(cell) for cell in column) for column in cells]
    least = [min(wanted[index], _least_width(index, columns[index], column)) for index, column in enumerate(cells)]
    fitting = list(range(len(columns)))
    while _total(least[index] for index in fitting) > width:
        optional = [index for index in fitting if columns[index].rank]
        if not optional:
            break
        fitting.remove(max(optional, key=lambda index: (columns[index].rank, index)))
    widths = {index: least[index] for index in fitting}
    spare = width - _total(widths.values())
    for position, index in enumerate(sorted(fitting, key=lambda index: (wanted[index] - widths[index], index))):
        more = min(wanted[index] - widths[index], max(0, spare) // (len(fitting) - position))
        widths[index] += more
        spare -= more
    return Layout(tuple(fitting), tuple(widths[index] for index in fitting))


def _total(widths: Iterable[int]) -> int:
    all_widths = list(widths)
    return sum(all_widths) + _GAP * (len(all_widths) - 1)


def _longest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _least_width(index: int, column: Column, cells: Sequence[str]) -> int:
    if index == 0:
        return max(map(_longest_line, cells))
    if column.cut:
        return max(_MIN_CUT, cell_len(column.name))
    words = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    return max(min(words, _MAX_WORD), cell_len(column.name))


def lines_of(columns: Sequence[Column], row: Sequence[str], layout: Layout) -> list[list[str]]:
    """The lines that a row takes: in each the cells of the shown columns, padded to their widths.

    The last column is not padded, so that no line ends in blanks.
    """
    parts = [
        [shorten(row[index], width)] if columns[index].cut else list(fold_text(row[index], width))
        for index, width in zip(layout.shown, layout.widths, strict=True)
    ]
    height = max(map(len, parts))
    filled = [part + [""] * (height - len(part)) for part in parts]
    last = len(parts) - 1
    return [
        [
            _pad(cell, layout.widths[place], right=columns[layout.shown[place]].right, last=place == last)
            for place, cell in enumerate(line)
        ]
        for line in zip(*filled, strict=True)
    ]


def _pad(cell: str, width: int, *, right: bool, last: bool) -> str:
    blanks = " " * max(0, width - cell_len(cell))
    if right:
        return blanks + cell
    return cell if last else cell + blanks


def fold_text(text: str, width: int) -> Iterator[str]:
    """The lines of a text, none wider than `width` cells; they end between words where that is possible."""
    for line in text.split("\n"):
        rest = line
        while cell_len(rest) > width:
            head = _head(rest, width)
            blank = head.rfind(" ") if rest[len(head)] != " " else len(head)
            end = blank if blank > 0 else len(head)
            yield rest[:end].rstrip()
            rest = rest[end:].lstrip()
        yield rest


def _head(text: str, width: int) -> str:
    """The begin of a text that takes `width` cells at most; one character at least."""
    used = 0
    for index, letter in enumerate(text):
        used += cell_len(letter)
        if used > width:
            return text[: max(1, index)]
    return text


def first_line(text: str) -> str:
    """The first line of a text: reasons of failures go on with a job's log."""
    return text.partition("\n")[0].rstrip()


def shorten(text: str, cells: int) -> str:
    """The first line of a text, cut to a number of terminal cells and marked by an ellipsis if it was."""
    line = first_line(text)
    if cell_len(line) <= cells:
        return line
    return _cut(line, cells - 1).rstrip() + "…"


def cell_len(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len as measured  # most tables have nothing but ASCII, and start sooner without it

    return measured(text)


def _cut(text: str, cells: int) -> str:
    """A text that is wider than a number of cells, cut to it."""
    if text.isascii() and text.isprintable():
        return text[:cells]
    from rich.cells import set_cell_size  # as above

    return set_cell_size(text, cells)


def join_cells(cells: Sequence[str]) -> str:
    """The cells of a line side by side."""
    return (" " * _GAP).join(cells)


def tab_separated(row: Sequence[str]) -> str:
    """A row for a pipe: nothing is cut or padded, and no cell has a tab or a line end."""
    return "\t".join(" ".join(cell.split()) for cell in row)
