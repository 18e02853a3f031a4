"""One page of one viewer: a Bokeh document that follows the shared history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from bokeh.document import Document
from bokeh.events import DocumentReady, RangesUpdate, Reset
from bokeh.models import ColumnDataSource, CustomJS, Spacer

from malletrain.dashboard.figures.colours import THEMES, Colours
from malletrain.dashboard.figures.columns import Columns
from malletrain.dashboard.figures.plots import theme_named, time_range
from malletrain.dashboard.figures.series import Series
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.markup import Regions
from malletrain.dashboard.pages.sections import Section
from malletrain.dashboard.pages.selection import SPANS, Selection
from malletrain.dashboard.pages.shared_data import SharedData
from malletrain.dashboard.pages.zones import shown_in, zone_in_words, zone_named
from malletrain.dashboard.templates import page_template
from malletrain.observer.history import History

SeriesT = TypeVar("SeriesT", bound=Series)

PAGES = (
    *(("now", "Now"), ("jobs", "Jobs"), ("compare", "Compare"), ("plan", "Plan"), ("nodes", "Nodes")),
    *(("week", "Week"), ("usage", "Usage")),
)
"""Addresses and names of the pages in the navigation."""


def place_of(name: str) -> str:
    """Identifier of the element in which a part of the document is shown."""
    return f"place-{name}"


class Page(ABC):
    """A page. Subclasses say what is on it.

    Attributes:
        name: Its address without the slash.
        title: Its heading.
        zone: In which times are written.
        when_ready: Called once when the browser has drawn it.
    """

    name = ""
    title = ""

    def __init__(self, shared: SharedData, viewer: Viewer, selection: Selection, theme: str) -> None:
        """Show nothing yet.

        Args:
            shared: What all viewers share.
            viewer: Who looks at it.
            selection: What the viewer has chosen.
            theme: `light` or `dark`.
        """
        self.shared = shared
        self.viewer = viewer
        self.selection = selection
        self.theme = theme
        self.zone = zone_named("")
        self.visible = True
        self.document: Document | None = None
        self.when_ready: Callable[[], object] = lambda: None
        self._ready = False
        self._live = selection.until is None
        self._bound: list[tuple[Series, ColumnDataSource, int]] = []
        self._regions = Regions()
        self._messages = 0
        self._post = Spacer(name="post", visible=False)
        self._seen = Spacer(name="visibility", visible=False)
        since, until = selection.period(shared.history.now)
        self.times = time_range(since, until)

    @property
    def history(self) -> History:
        """What has happened."""
        return self.shared.history

    @property
    def colours(self) -> Colours:
        """The theme."""
        return THEMES[self.theme]

    def period(self) -> tuple[float, float]:
        """Begin and end of what tables tell of, in seconds since the epoch."""
        return self.selection.period(self.history.now)

    @abstractmethod
    def sections(self) -> tuple[Section, ...]:
        """What the page is made of."""

    def figures(self) -> list[Any]:
        """Its figures; their names are those of the sections."""
        return []

    @abstractmethod
    def regions(self) -> Regions:
        """The parts that change."""

    async def ask(self) -> None:
        """Ask services in the viewer's name for what is not in the history; nothing by default."""
        return

    def on_refreshed(self) -> None:
        """Called after the data of figures were brought up to date; does nothing by default."""
        return

    def series(self, key: Hashable, make: Callable[[], SeriesT]) -> tuple[SeriesT, ColumnDataSource]:
        """Columns that the viewers share, and a source that follows them."""
        found = self.shared.series(key, make)
        source = ColumnDataSource(data=_arrays(found.columns))
        self._bound.append((found, source, found.version))
        return found, source

    def html(self) -> str:
        """The page but for its end: all that is known before its figures are made."""
        regions = self._regions = self._all_regions()
        with shown_in(self.zone):
            zone = zone_in_words(self.history.now)
        found: str = page_template().render(
            page=self,
            title=f"{self.title} · MalleTrain",
            pages=[(text, self.selection.link(name), name == self.name) for name, text in PAGES],
            sections=self.sections(),
            texts=regions.texts,
            bodies={name: regions.body(name) for name in regions.tables},
            place_of=place_of,
            theme=self.theme,
            zone=zone,
            csv=lambda name: self.selection.link(f"csv/{self.name}/{name}"),
        )
        return found

    def open(self, document: Document) -> None:
        """Fill a document with the figures."""
        self.document = document
        document.title = f"{self.title} · MalleTrain"
        document.theme = theme_named(self.theme)
        figures = self.figures()
        for plot in figures:
            self.follow_ranges(plot)
        self._post.js_on_change("tags", CustomJS(code="malletrain.write(cb_obj.tags)"))
        self._seen.on_change("tags", self._shown)
        document.on_event(DocumentReady, self._drawn_first)
        document.js_on_event("document_ready", CustomJS(code="malletrain.ready()"))
        document.js_on_event("connection_lost", CustomJS(code="malletrain.lost()"))
        document.config.notify_connection_status = False
        with document.models.freeze():
            for root in (*figures, self._post, self._seen):
                document.add_root(root)

    def follow_ranges(self, plot: Any) -> None:
        """Notice when the viewer moves a figure's times."""
        plot.on_event(RangesUpdate, self._moved)
        plot.on_event(Reset, self._reset)

    def bound(self) -> list[Series]:
        """The series that its figures show."""
        return [series for series, _, _ in self._bound]

    def turn_away(self) -> None:
        """Show nothing any more to a viewer whose token is void."""
        self._messages += 1
        self._post.tags = [self._messages, [("content", "<p>Your token has expired or was revoked.</p>")]]

    def refresh(self) -> None:
        """Bring the document up to date. Nothing is sent if nothing has changed."""
        if not self.visible:
            return
        for place, (series, source, version) in enumerate(self._bound):
            if series.version != version:
                _apply(source, series, version)
                self._bound[place] = (series, source, series.version)
        self.on_refreshed()
        if self._live:
            end = 1000.0 * self.history.now
            if end - self.times.end > 5.0 * self.selection.span or self._is_due(end):
                self.times.update(start=end - 1000.0 * self.selection.span, end=end)
        # A browser that is not there yet would not hear what to write.
        if not self._ready:
            return
        before, after = self._regions, self._all_regions()
        if after is before:
            return
        # Both are kept with what differs, so that their identities hold; most viewers come from and to the same.
        key = ("changes", id(before), id(after))
        _, _, written = self.shared.cached(key, lambda: (before, after, markup.changes(before, after)))
        self._regions = after
        if written:
            self._messages += 1
            self._post.tags = [self._messages, written]

    def _is_due(self, end: float) -> bool:
        """Whether the shown times have moved on by a pixel or so, or something has happened since."""
        return bool(end - self.times.end > self.selection.span or self.shared.happened * 1000.0 > self.times.end)

    def _all_regions(self) -> Regions:
        """The parts that change; the same object for all viewers to whom they look alike."""

        def make() -> Regions:
            found = self.regions()
            shared = {
                "services": self.shared.cached(("services", self.zone), self._services),
                "spans": self.shared.cached(("spans", self.name, self.selection, self.zone), self._spans),
            }
            return Regions({**shared, **found.texts}, found.tables, found.empty)

        with shown_in(self.zone):
            return self.shared.cached((self.name, self.selection, self.theme, self.zone, self.own_key()), make)

    def own_key(self) -> Hashable:
        """What makes this viewer's regions differ from others' of the same page; None: nothing."""
        return None

    def _services(self) -> str:
        lines = self.shared.troubles(views.time_of_day)
        return markup.paragraphs([" ".join(lines)] if lines else ())

    def _spans(self) -> str:
        now = self.history.now
        entries = [
            (text, self.selection.link(self.name, span=span), span == self.selection.span)
            for text, span in SPANS.items()
        ]
        if self.selection.until is None:
            return markup.links([*entries, ("hold this moment", self.selection.link(self.name, until=now), False)])
        held = f"until {views.date_and_time(self.selection.until)}: back to now"
        return markup.links([*entries, (held, self.selection.link(self.name, until=None), True)])

    def _moved(self, event: RangesUpdate) -> None:
        del event
        self._live = False

    def _reset(self, event: Reset) -> None:
        del event
        self._live = self.selection.until is None

    def _drawn_first(self, event: DocumentReady) -> None:
        del event
        self._ready = True
        self.refresh()
        self.when_ready()

    def _shown(self, name: str, old: Any, new: Any) -> None:
        del name, old
        self.visible = new != ["hidden"]
        if self.visible:
            self.shared.refresh()
            self.refresh()


def _arrays(columns: Columns) -> dict[str, Any]:
    """Numbers as arrays, which travel in a compact form."""
    return {name: _array(values) for name, values in columns.items()}


def _array(values: list[Any]) -> Any:
    if values and isinstance(values[0], float):
        return np.asarray(values, dtype=np.float64)
    if values and isinstance(values[0], int):
        return np.asarray(values, dtype=np.int32)
    return list(values)


def _apply(source: ColumnDataSource, series: Series, version: int) -> None:
    """Bring a source to the present version of its series."""
    delta = series.delta
    if version != series.version - 1 or delta.whole is not None:
        source.data = _arrays(series.columns)
        return
    if delta.patch:
        source.patch(delta.patch)
    if any(delta.added.values()):
        # A column that was empty has no type yet.
        if not len(next(iter(source.data.values()))):
            source.data = _arrays(series.columns)
        else:
            source.stream(delta.added)
