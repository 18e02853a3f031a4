"""What all viewers share: the history, the data of figures, and tables that look the same to many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from malletrain.dashboard.figures.series import Series
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
    """

    def __init__(self, watcher: Watcher, replays: Replays) -> None:
        """Show what the watcher knows so far."""
        self.watcher = watcher
        self.replays = replays
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
            found = make()
            found.refresh(self.history)
            self._series[key] = found
            while len(self._series) > _MAX_SERIES:
                self._series.popitem(last=False)
        self._series.move_to_end(key)
        return cast("SeriesT", self._series[key])

    def keep(self, used: set[int]) -> None:
        """Forget all series but these (by `id`): nobody looks at the others."""
        for key in [key for key, series in self._series.items() if id(series) not in used]:
            del self._series[key]

    def cached(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """What `make` returns, worked out once until the next refresh."""
        if key not in self._cached:
            self._cached[key] = make()
        return cast("ValueT", self._cached[key])

    def kept(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
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
        self.kept(key, lambda: answer)

    def answer(self, key: Hashable) -> Any:
        """What was kept for a key; None: nothing."""
        return self._kept.get(key)

    def troubles(self, time_of_day: Callable[[float], str]) -> list[str]:
        """A line for each service that does not answer or serve us.

        Args:
            time_of_day: Writes a time, which is in seconds since the epoch.
        """
        return troubles(self.watched.services, self.history.source, "the dashboard", time_of_day)
