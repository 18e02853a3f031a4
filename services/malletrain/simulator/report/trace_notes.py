"""What the metadata of a trace says of how it was made: skipped rows, the window, nodes left out, assumptions. Pure.

Metadata are a file that anybody may have written, and of any version: what has another form than expected is left out,
and texts are cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from malletrain.simulator.report.wording import finite

MAX_SHOWN = 20
"""Entries of a list that are shown."""
_MAX_LETTERS = 600
_SOURCES = ("system", "source", "statistics")
_DRAWN = "generated "
"""How `malletrain trace generate` begins the source of its traces."""
_TOLD_APART = "skipped "
"""How the sentences begin that repeat `skipped`, with the lines of files."""
_FOLDERS = re.compile(
    r"(?<![\w\])])(?:\.{1,2}|~)?/(?:[^\s/]{1,255}/)*|(?<!\S)(?:[^\s/:]{1,255}/)+(?=[^\s/:]{1,255}:\d)"
)


@dataclass(frozen=True)
class SkippedReason:
    """Rows of a log that could not be used for one reason.

    Attributes:
        rows: How many rows.
        node_hours: What they concern; None: not known.
    """

    reason: str
    rows: int
    node_hours: float | None


@dataclass(frozen=True)
class TraceNotes:
    """How a trace was made.

    Attributes:
        sources: Where it is from, in sentences.
        drawn: Whether it was drawn at random and is no log.
        counted: Whether it is known what was skipped.
        rows_used: Rows that were used; None: not known.
        skipped: What was skipped, the most rows first.
        skipped_row_share: Share of the rows that was skipped.
        skipped_node_hour_share: Share of the node-hours in jobs that was skipped.
        assumptions: What was chosen and assumed, in sentences.
    """

    sources: tuple[str, ...] = ()
    drawn: bool = False
    counted: bool = False
    rows_used: int | None = None
    skipped: tuple[SkippedReason, ...] = ()
    skipped_row_share: float = 0.0
    skipped_node_hour_share: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def skipped_rows(self) -> int:
        """Rows that were skipped."""
        return sum(entry.rows for entry in self.skipped)


def notes_of(metadata: Mapping[str, object]) -> TraceNotes:
    """What the metadata of a trace says.

    Args:
        metadata: The content of the JSON beside it.
    """
    sources = tuple(text for key in _SOURCES if (text := _text(metadata.get(key))))
    drawn = _text(metadata.get("source")).startswith(_DRAWN)
    made = metadata.get("conversion")
    if not isinstance(made, Mapping):
        return TraceNotes(sources, drawn)
    rows_used = _number(made.get("rows_used"))
    return TraceNotes(
        sources,
        drawn,
        isinstance(made.get("skipped"), list),
        None if rows_used is None else int(rows_used),
        tuple(_skipped_reasons(made.get("skipped"))),
        _number(made.get("skipped_row_share")) or 0.0,
        _number(made.get("skipped_node_hour_share")) or 0.0,
        tuple(_assumptions(made)),
    )


def _skipped_reasons(reasons: object) -> Iterator[SkippedReason]:
    for entry in reasons[:MAX_SHOWN] if isinstance(reasons, list) else ():
        if isinstance(entry, Mapping) and (rows := _number(entry.get("rows"))) and (text := _text(entry.get("reason"))):
            yield SkippedReason(text, int(rows), _number(entry.get("node_hours")))


def _assumptions(made: Mapping[str, object]) -> Iterator[str]:
    notes = made.get("notes")
    if isinstance(notes, list):
        texts = (_text(note) for note in notes[:MAX_SHOWN])
        yield from (text for text in texts if text and not text.startswith(_TOLD_APART))
        return
    rows = made.get("assumed_of_rows")
    for what, count in list(rows.items())[:MAX_SHOWN] if isinstance(rows, Mapping) else ():
        if number := _number(count):
            yield f"{_text(what)} ({number:,.0f} {'row' if number == 1 else 'rows'})"


def _text(value: object) -> str:
    """A text as a line without the folders of files, which are nobody else's business."""
    if not isinstance(value, str):
        return ""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in value[: 2 * _MAX_LETTERS]).split())
    short = _FOLDERS.sub("", plain)
    return short if len(short) <= _MAX_LETTERS else f"{short[:_MAX_LETTERS]} …"


def _number(value: object) -> float | None:
    number = finite(value)
    return number if number is not None and number >= 0 else None
