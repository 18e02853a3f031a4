"""The page Week: the last days replayed with other settings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from bokeh.models import ColumnDataSource, Range1d
from markupsafe import Markup

from malletrain.allocator.utilization.definition import IN_WORDS
from malletrain.dashboard.figures import plots
from malletrain.dashboard.pages import markup, week_views
from malletrain.dashboard.pages.markup import Regions, Section
from malletrain.dashboard.pages.page import Page
from malletrain.dashboard.pages.week_views import Form
from malletrain.dashboard.pages.what_if import NO_COLUMNS, WhatIf, course_columns
from malletrain.model.what_if import WhatIfComparison

_SECTIONS = (
    Section(
        "form",
        "what-if",
        "Replay the last days with",
        "The jobs and idle nodes of the past, with other settings. Nothing is changed in the running system.",
    ),
    Section("tiles", "week", note=IN_WORDS),
    Section(
        "figure",
        "course",
        "Samples over this past",
        "Of the jobs that are replayed: as it was, with these settings, and with them if rescaling were free.",
    ),
    Section(
        "table",
        "outcomes",
        "What-ifs of this past",
        "All that was replayed of the same days, the most samples first. U as on the page Now.",
        ("settings", "U", "samples", "more than really", "rescales", "preemptions", "U if rescaling were free"),
        (1, 2, 3, 4, 5, 6),
    ),
    Section(
        "table",
        "compared",
        "Jobs",
        "Those with the most samples. Only your own have names, and all of them for operators.",
        ("job", "name", "samples, really", "in this what-if", "difference"),
        (2, 3, 4),
        half=True,
    ),
    Section("text", "notes", "What could not be taken over", half=True),
)


class WeekPage(Page):
    """The last days as they were, and as they would have been."""

    name = "week"
    title = "Week"
    sections = _SECTIONS

    def own_key(self) -> Hashable:
        """Which replays there are, and whose jobs are named."""
        return (self.shared.replays.version, self.viewer.user, self.viewer.role)

    def comparison(self) -> WhatIfComparison | None:
        """What the chosen what-if gave; None: it is not known."""
        chosen = self.selection.what_if
        return self.shared.replays.result_of(chosen) if chosen is not None else None

    def form(self) -> Form:
        """The form, with what is chosen, else with the settings in force."""
        chosen, replays = self.selection.what_if, self.shared.replays
        return week_views.form_of(chosen or replace(replays.present, past=replays.known_past))

    def figures(self) -> list[Any]:
        """Its figures."""
        self._drawn: WhatIfComparison | None = None
        self._source = ColumnDataSource(data=NO_COLUMNS)
        since, until = self.period()
        self._range = Range1d(start=1000.0 * since, end=1000.0 * until)
        plot = plots.course_figure(self._range, self._source, self.colours)
        self.on_refreshed()
        return [plot]

    def on_refreshed(self) -> None:
        """Draw what was replayed meanwhile."""
        comparison = self.comparison()
        if comparison is not None and comparison is not self._drawn:
            self._drawn = comparison
            self._source.data = course_columns(comparison)
            self._range.update(start=1000.0 * comparison.times_unix[0], end=1000.0 * comparison.times_unix[-1])

    def regions(self) -> Regions:
        """The parts that change."""
        chosen, comparison, replays = self.selection.what_if, self.comparison(), self.shared.replays
        known = replays.of_same_past(chosen) if chosen is not None else []
        return Regions(
            {
                "week": markup.tiles(week_views.tiles(comparison)),
                "notes": markup.paragraphs(comparison.notes or ("Nothing.",) if comparison is not None else ()),
                "replay-status": markup.paragraphs([self._status(chosen, comparison)]),
                "replay-cancel": self._cancel(),
            },
            {
                "outcomes": week_views.outcome_rows(chosen, known, self.selection),
                "compared": week_views.compared_rows(comparison, self.viewer.user, self.viewer.role, self.selection),
            },
        )

    def _status(self, chosen: WhatIf | None, comparison: WhatIfComparison | None) -> str:
        replays, running = self.shared.replays, self.shared.replays.running
        if running is not None and running.what_if == chosen:
            return f"Replaying: {markup.percent(running.share, 0)}." if running.share else "Reading the past …"
        other = f" Now {running.what_if.in_words()} is replayed: one at a time." if running is not None else ""
        if comparison is not None:
            begin, end = comparison.times_unix[0], comparison.times_unix[-1]
            return f"{week_views.at_minute(begin)} to {week_views.at_minute(end)}.{other}"
        if chosen is not None and (failure := replays.failure(chosen)):
            return f"Not replayed: {failure}.{other}"
        return f"Choose settings and replay.{other}" if chosen is None else f"Not replayed yet: press Replay.{other}"

    def _cancel(self) -> str:
        running = self.shared.replays.running
        if running is None or not week_views.has_rights(self.viewer.user, self.viewer.role, running.user):
            return ""
        hidden = Markup("").join(
            Markup('<input type="hidden" name="{}" value="{}">').format(name, value)
            for name, value in (self.selection.what_if or running.what_if).arguments().items()
        )
        shape = Markup(
            '<form method="post" action="/week/cancel">{}<button type="submit">Cancel the replay</button></form>'
        )
        return str(shape.format(hidden))

    def _spans(self) -> str:
        """The past is chosen by the form."""
        return ""
