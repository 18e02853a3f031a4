"""The page Now."""

from __future__ import annotations

import math
from typing import Any

from malletrain.allocator.utilization.definition import IN_WORDS
from malletrain.dashboard.figures import columns, plots
from malletrain.dashboard.figures.columns import FragmentSeries, Series
from malletrain.dashboard.pages import markup, now_views, views
from malletrain.dashboard.pages.markup import Regions, Section
from malletrain.dashboard.pages.page import Page
from malletrain.observer.history import History

_SECTIONS = (
    Section("tiles", "tiles", note=IN_WORDS),
    Section(
        "figure",
        "nodes",
        "Who has which node",
        "A row for each node, coloured by its job. Grey: idle, no job has it. Empty: not idle, or not known.",
    ),
    Section(
        "table",
        "legend",
        "Jobs with nodes",
        "Now, and below them those that had nodes in the shown time.",
        headings=("job", "name", "state", "nodes", "samples/s"),
        numbers=(3, 4),
        half=True,
    ),
    Section(
        "table",
        "uses",
        "What became of the idle nodes",
        "Node-hours of the shown period, as far as the services have recorded it.",
        ("use", "node-hours", "share"),
        (1, 2),
        half=True,
    ),
    Section("figure", "use", "Idle nodes by use", "Mean of each minute; colours as in the table above.", half=True),
    Section(
        "figure",
        "samples",
        "Samples trained",
        "All jobs together, by minute; and what they would have trained on the same nodes, by their curves, if "
        "rescaling were free.",
        half=True,
    ),
    Section(
        "table",
        "reclaims",
        "What the main queue could have noticed",
        "Nodes that it took from jobs, and how long until no process of ours was left there.",
        ("when", "nodes taken back", "median until free", "longest", "node-hours held"),
        (1, 2, 3, 4),
        half=True,
    ),
    Section(
        "figure", "releases", "Nodes taken back", "Each diamond: a node, and how long until it was free.", half=True
    ),
)


class NowPage(Page):
    """Nodes, jobs and losses of the present."""

    name = "now"
    title = "Now"
    sections = _SECTIONS

    def figures(self) -> list[Any]:
        """Its figures."""
        chosen = self.selection.job
        self._fragments, bars = self.series(
            ("fragments", self.theme, chosen), lambda: FragmentSeries(self.colours, chosen)
        )
        _, minutes = self.series("minutes", lambda: Series(columns.use_steps))
        _, samples = self.series("samples", lambda: Series(_samples))
        _, releases = self.series("releases", lambda: Series(columns.release_columns))
        self._labels = len(self._fragments.rows)
        self._texts = plots.Texts(self._fragments.texts)
        self._nodes = plots.nodes_figure(self.times, bars, self._fragments.names, self._texts, self.colours)
        return [
            self._nodes,
            plots.use_figure(self.times, minutes, self.colours),
            plots.samples_figure(self.times, samples, self.colours),
            plots.releases_figure(self.times, releases, self.colours),
        ]

    def on_refreshed(self) -> None:
        """Name nodes and jobs that were not there before."""
        if len(self._fragments.labels) != self._texts.jobs_known or len(self._fragments.rows) != self._labels:
            self._texts.update(self._fragments.texts)
        if len(self._fragments.rows) != self._labels:
            self._labels = len(self._fragments.rows)
            plots.label_rows(self._nodes, self._fragments.names)

    def regions(self) -> Regions:
        """The parts that change."""
        since, until = self.period()
        return Regions(
            {"tiles": markup.tiles(now_views.now_tiles(self.history, since, until))},
            {
                "legend": views.legend_rows(self.history, self.colours, self.selection),
                "uses": now_views.use_rows(self.history, self.colours, since, until),
                "reclaims": now_views.reclaim_rows(self.history, since, until),
            },
            {"legend": "No job has nodes, or had some in the shown time. The page Jobs says why they wait."},
        )


def _samples(history: History) -> columns.Columns:
    return columns.as_steps(columns.sample_columns(history.utilization), math.nan)
