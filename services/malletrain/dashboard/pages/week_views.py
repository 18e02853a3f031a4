"""What the page Week says. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from malletrain.dashboard.pages import markup
from malletrain.dashboard.pages.markup import Cell, Row
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.what_if import (
    DAYS,
    FORWARD_POLICIES,
    MAX_FORWARD_S,
    MAX_PLACES,
    MIN_FORWARD_S,
    POLICIES,
    WhatIf,
)
from malletrain.model.what_if import PastOutcome, WhatIfComparison

_MAX_JOBS = 100
_OPERATORS = ("operator", "service")


@dataclass(frozen=True)
class Field:
    """A control of the form.

    Attributes:
        name: Name of what is sent.
        label: What it is.
        value: What it has at first.
        options: Texts and values to choose from; empty: it is a number.
        least: Smallest number.
        most: Largest number.
        step: `1` for whole numbers, `any` for others.
    """

    name: str
    label: str
    value: str
    options: tuple[tuple[str, str], ...] = ()
    least: str = ""
    most: str = ""
    step: str = "1"


@dataclass(frozen=True)
class Form:
    """The form that asks for a what-if."""

    fields: tuple[Field, ...]
    hidden: tuple[tuple[str, str], ...]
    past: str


def has_rights(user: str, role: str, whose: str) -> bool:
    """Whether a user with a role may end a replay that somebody has asked for, or see the name of their job."""
    return user == whose or role in _OPERATORS


def form_of(what_if: WhatIf) -> Form:
    """The form with these settings."""
    values = what_if.arguments()
    fields = (
        Field("days", "Length of the past", values["days"], tuple((text, f"{days:g}") for text, days in DAYS.items())),
        Field("forward", "T_fwd in seconds", values["forward"], (), f"{MIN_FORWARD_S:g}", f"{MAX_FORWARD_S:g}", "any"),
        Field("horizon", "T_fwd is", values["horizon"], tuple(FORWARD_POLICIES.items())),
        Field("places", "Jobs at once", values["places"], (), "1", str(MAX_PLACES)),
        Field("policy", "Who decides", values["policy"], tuple(POLICIES.items())),
    )
    hidden = (("past", values["past"]),) if what_if.past else ()
    return Form(fields, hidden, at_minute(what_if.past) if what_if.past else "an earlier moment")


def at_minute(unix_seconds: float) -> str:
    """A time for people."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"


def tiles(comparison: WhatIfComparison | None) -> list[tuple[str, str, str]]:
    """The figures at the top."""
    if comparison is None:
        return []
    gain = _gain(comparison.replay.samples, comparison.really.samples)
    return [
        ("Samples, this what-if", markup.number(comparison.replay.samples), f"{gain} than really"),
        ("Samples, really", markup.number(comparison.really.samples), "of the jobs that are replayed"),
        (
            "U, this what-if",
            markup.percent(comparison.replay.efficiency),
            f"really {markup.percent(comparison.really.efficiency)}",
        ),
        (
            "U if rescaling were free",
            markup.percent(comparison.replay.bound),
            f"the zero-cost bound; really {markup.percent(comparison.really.bound)}",
        ),
        (
            "Idle node-hours",
            markup.number(comparison.node_hours, 1),
            f"{markup.percent(comparison.held)} of them held by jobs",
        ),
    ]


def outcome_rows(
    chosen: WhatIf | None, known: Iterable[tuple[WhatIf, WhatIfComparison]], selection: Selection
) -> tuple[Row, ...]:
    """What really happened, and each what-if of the same past with its bound, the one with the most samples first."""
    ranked = sorted(known, key=lambda entry: -entry[1].replay.samples)
    if not ranked:
        return ()
    reference = next((comparison for what_if, comparison in ranked if what_if == chosen), ranked[0][1])
    rows = [Row("really", (Cell("what really happened"), *_cells(reference.really, reference.really)))]
    for place, (what_if, comparison) in enumerate(ranked):
        link = selection.link("week", what_if=what_if)
        cells = (
            Cell(what_if.in_words(), link=link),
            *_cells(comparison.replay, reference.really),
        )
        rows.append(Row(f"what-if-{place}", cells, chosen=what_if == chosen))
    return tuple(rows)


def _cells(outcome: PastOutcome, really: PastOutcome) -> tuple[Cell, ...]:
    gain = "–" if outcome is really else _gain(outcome.samples, really.samples)
    counts = (markup.number(outcome.rescales), markup.number(outcome.preemptions))
    return markup.number_cells(
        markup.percent(outcome.efficiency), markup.number(outcome.samples), gain, *counts, markup.percent(outcome.bound)
    )


def _gain(samples: float, reference: float) -> str:
    return f"{100 * (samples / reference - 1):+.1f} %" if reference else "–"


def compared_rows(comparison: WhatIfComparison | None, user: str, role: str, selection: Selection) -> tuple[Row, ...]:
    """Jobs as they were and as they would have been. Whose job it is not, and who is no operator, sees no name."""
    rows = []
    for job in comparison.jobs[:_MAX_JOBS] if comparison is not None else ():
        named = has_rights(user, role, job.owner)
        cells = (
            Cell(job.job_id, link=selection.link("job", job=job.job_id)),
            Cell(job.name if named else "–"),
            *markup.number_cells(
                markup.number(job.really), markup.number(job.replayed), _gain(job.replayed, job.really)
            ),
        )
        rows.append(Row(f"job-{job.job_id}", cells))
    return tuple(rows)
