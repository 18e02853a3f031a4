"""The page Nodes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from bokeh.models import ColumnDataSource

from malletrain.dashboard.figures import columns, plots
from malletrain.dashboard.figures.columns import Series
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.actions import actions_html, node_actions
from malletrain.dashboard.pages.markup import Regions, Section
from malletrain.dashboard.pages.page import Page
from malletrain.observer.history import History

_SECTIONS = (
    Section("facts", "source"),
    Section("text", "actions"),
    Section(
        "table",
        "nodes",
        "Idle nodes",
        "Those that are expected to leave next come first. Choose one to see what became of it.",
        ("node", "job", "idle for", "expected further stay", "wanted back at", "pool", "GPUs", "held by"),
        (2, 3, 4),
    ),
    Section(
        "table", "troubles", "Left out", "Nodes that are quarantined or drained.", ("node", "what", "why"), half=True
    ),
    Section(
        "table",
        "fragments",
        "What became of the chosen node",
        "Newest first.",
        ("job", "from", "until", "for"),
        (3,),
        half=True,
    ),
    Section(
        "figure",
        "survival",
        "How long nodes stay idle",
        "Share of the idle periods seen here that last longer (Kaplan-Meier: those that last count as far as they go).",
        half=True,
    ),
    Section(
        "figure",
        "stay",
        "How much longer a node stays",
        "From the same curve: the longer a node has been idle, the longer it usually stays. Within the next 24 hours.",
        half=True,
    ),
)


_NO_NODES = (
    "No node is idle that we may use. What the source says of itself stands above; malletrain doctor looks further."
)
_NOT_HEARD = "The Scavenger has not said yet which nodes are idle."


class NodesPage(Page):
    """The idle nodes."""

    name = "nodes"
    title = "Nodes"
    sections = _SECTIONS

    def figures(self) -> list[Any]:
        """Its figures."""
        node = self.selection.node
        self._survival, survival = self.series("survival", lambda: Series(_survival))
        self._mark = ColumnDataSource(data=self._age()) if node else None
        return [
            plots.survival_figure(survival, self.colours, self._mark, node),
            plots.stay_figure(survival, self.colours, self._mark, node),
        ]

    def on_refreshed(self) -> None:
        """Mark the age of the chosen node."""
        age = self._age()
        if self._mark is not None and age != self._mark.data:
            self._mark.data = age

    def _age(self) -> columns.Columns:
        """The chosen node's point on the survival curves; none while it is not idle."""
        known = (self.history.nodes or {}).get(self.selection.node)
        past = self.history.now % _EVERY_S
        age = self.history.now - past - known.idle_since if known is not None else -1.0
        return columns.at_age(self._survival.columns, age)

    def regions(self) -> Regions:
        """The parts that change."""
        source = self.history.source
        facts = [("source", source.source if source else "not heard yet")]
        facts += [("placeholders", line) for line in (source.placeholders if source else ())]
        facts.append(("idle nodes", str(len(self.history.nodes or ()))))
        facts.append(("leaves next", views.leaving_next(self.history)))
        return Regions(
            {"source": markup.facts(facts), "actions": self._actions()},
            {
                "nodes": views.node_rows(self.history, self.colours, self.selection),
                "troubles": views.trouble_rows(self.history, self.selection),
                "fragments": views.fragment_rows(self.history, self.selection, self.colours),
            },
            {"nodes": _NO_NODES if self.history.nodes is not None else _NOT_HEARD, "troubles": "no node is left out"},
        )

    def own_key(self) -> Hashable:
        """What may be done depends on who looks."""
        return self.viewer.role

    def _actions(self) -> str:
        """What the viewer may do with the chosen node."""
        troubles = self.history.source.troubles if self.history.source is not None else ()
        left_out = any(trouble.name == self.selection.node for trouble in troubles)
        return actions_html(node_actions(self.viewer.role, self.selection.node, left_out=left_out))


_EVERY_S = 30.0


def _survival(history: History) -> columns.Columns:
    """As of the last half minute: the curve moves slowly."""
    ended, lasting = views.idle_lengths(history)
    past = history.now % _EVERY_S
    return columns.survival_columns(ended, [length - past for length in lasting if length > past])
