"""What all viewers share, and one page of one viewer: a Bokeh document that follows the shared history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from bokeh.document import Document
from bokeh.events import DocumentReady, RangesUpdate, Reset
from bokeh.models import ColumnDataSource, CustomJS, Spacer

from malletrain.dashboard.figures.colours import THEMES, Colours
from malletrain.dashboard.figures.columns import Columns, Series
from malletrain.dashboard.figures.plots import theme_named, time_range
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.markup import Regions, Section
from malletrain.dashboard.pages.older_jobs import OlderJobs
from malletrain.dashboard.pages.selection import SPANS, Selection, shown_in, zone_in_words, zone_named
from malletrain.dashboard.templates import template
from malletrain.observer.history import History
from malletrain.observer.troubles import troubles

if TYPE_CHECKING:
    from malletrain.dashboard.replays import Replays
    from malletrain.observer.watching import Watched, Watcher

ValueT = TypeVar("ValueT")
SeriesT = TypeVar("SeriesT", bound=Series)

_MAX_SERIES = 300
_MAX_KEPT = 100
_OLD_S = 2.0


class SharedData:
    """Shared by all documents of one event loop.

    Attributes:
        history: What the documents show now.
        happened: When something notable was last seen, in seconds since the epoch.
        watcher: Follows the services.
        replays: Replays of the past.
        older: Jobs that are not in the history, for the viewers who may see them.
    """

    def __init__(self, watcher: Watcher, replays: Replays) -> None:
        """Show what the watcher knows so far."""
        self.watcher = watcher
        self.replays = replays
        self.older = OlderJobs(watcher)
        self.history: History = watcher.watched.history
        self.happened = 0.0
        self._revision = -1
        self._series: OrderedDict[Hashable, Series] = OrderedDict()
        self._cached: dict[Hashable, Any] = {}
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    @property
    def watched(self) -> Watched:
        """What is known by now."""
        return self.watcher.watched

    @property
    def begin(self) -> float:
        """When what is known of idle nodes begins, in seconds since the epoch."""
        return self.history.minutes[0].start if self.history.minutes else self.history.now

    def refresh(self) -> None:
        """Take over what has happened since the last time."""
        self.watcher.tick()
        self.history = self.watched.history
        if self.watched.revision != self._revision:
            self._revision = self.watched.revision
            self.happened = self.history.now
        self._cached.clear()
        for series in self._series.values():
            series.refresh(self.history)

    def refresh_if_old(self) -> None:
        """Take over what has happened if nobody has looked for a while."""
        if self.watcher.now() - self.history.now > _OLD_S:
            self.refresh()

    def series(self, key: Hashable, make: Callable[[], SeriesT]) -> SeriesT:
        """The series of this key, up to date; the least recently used are forgotten where there are too many."""
        if key not in self._series:
            series = make()
            series.refresh(self.history)
            self._series[key] = series
            while len(self._series) > _MAX_SERIES:
                self._series.popitem(last=False)
        self._series.move_to_end(key)
        return cast("SeriesT", self._series[key])

    def keep_series(self, used: set[int]) -> None:
        """Forget all series but these (by `id`): nobody looks at the others."""
        for key in [key for key, series in self._series.items() if id(series) not in used]:
            del self._series[key]

    def cached(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """What `make` returns, worked out once until the next refresh."""
        if key not in self._cached:
            self._cached[key] = make()
        return cast("ValueT", self._cached[key])

    def remembered(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """What `make` returns, worked out once for what never changes; the least used of too many are forgotten."""
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return cast("ValueT", self._kept[key])

    def keep_answer(self, key: Hashable, answer: Any) -> None:
        """Keep what a service has answered, for `answer`; the least used of too many are forgotten."""
        self._kept.pop(key, None)
        self.remembered(key, lambda: answer)

    def answer(self, key: Hashable) -> Any:
        """What was kept for a key; None: nothing."""
        return self._kept.get(key)

    def troubles(self, time_of_day: Callable[[float], str]) -> list[str]:
        """A line for each service that does not answer or serve us.

        Args:
            time_of_day: Writes a time, which is in seconds since the epoch.
        """
        return troubles(self.watched.services, self.history.source, "the dashboard", time_of_day)


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
        sections: What it is made of.
        zone: In which times are written.
        when_ready: Called once when the browser has drawn it.
    """

    name = ""
    title = ""
    sections: tuple[Section, ...] = ()

    def __init__(self, shared: SharedData, viewer: Viewer, selection: Selection, theme: str) -> None:
        """
        Args:
            shared: What all viewers share.
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
        """The history that all pages show."""
        return self.shared.history

    @property
    def colours(self) -> Colours:
        """The colours of the chosen theme."""
        return THEMES[self.theme]

    def period(self) -> tuple[float, float]:
        """Begin and end of what tables tell of, in seconds since the epoch."""
        return self.selection.period(self.history.now)

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
        series = self.shared.series(key, make)
        source = ColumnDataSource(data=_arrays(series.columns))
        self._bound.append((series, source, series.version))
        return series, source

    def html(self) -> str:
        """The page but for its end: all that is known before its figures are made."""
        regions = self._regions = self._all_regions()
        with shown_in(self.zone):
            zone = zone_in_words(self.history.now)
        beginning: str = template("page.html").render(
            page=self,
            title=f"{self.title} · MalleTrain",
            pages=[(text, self.selection.link(name), name == self.name) for name, text in PAGES],
            sections=self.sections,
            texts=regions.texts,
            bodies={name: regions.body(name) for name in regions.tables},
            place_of=place_of,
            theme=self.theme,
            zone=zone,
            csv=lambda name: self.selection.link(f"csv/{self.name}/{name}"),
        )
        return beginning

    def open(self, document: Document) -> None:
        """Fill a document with the figures."""
        self.document = document
        document.title = f"{self.title} · MalleTrain"
        document.theme = theme_named(self.theme)
        figures = self.figures()
        for plot in figures:
            self.follow_ranges(plot)
        self._post.js_on_change("tags", CustomJS(code="malletrain.write(cb_obj.tags)"))
        self._seen.on_change("tags", self._on_visibility)
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
        """Show nothing any more to a viewer whose token is no longer valid."""
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
            own = self.regions()
            shared = {
                "services": self.shared.cached(("services", self.zone), self._services),
                "spans": self.shared.cached(("spans", self.name, self.selection, self.zone), self._spans),
            }
            return Regions({**shared, **own.texts}, own.tables, own.empty)

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

    def _on_visibility(self, name: str, old: Any, new: Any) -> None:
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
