"""What a page is made of, for its template. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        kind: `tiles`, `figure`, `table`, `facts`, `text`, `log` or `links`.
        id: Identifier of the region, or name of the figure.
        title: Its heading; empty: none.
        note: What it means, in a sentence or two.
        headings: Of the columns of a table.
        numbers: Columns of a table that are numbers.
        half: Whether two such sections may stand side by side.
    """

    kind: str
    id: str
    title: str = ""
    note: str = ""
    headings: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    half: bool = False
