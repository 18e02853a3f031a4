"""What a page is made of, for its template. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
    """A form that leads to another address of a page by one number.

    Attributes:
        name: Of the argument.
        label: What the number is.
        value: What is chosen; empty: nothing.
        action: Address of the page.
        hidden: Names and values that the address keeps.
    """

    name: str
    label: str
    value: str
    action: str
    hidden: tuple[tuple[str, str], ...]
