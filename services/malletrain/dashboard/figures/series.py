"""Data of figures that many viewers share: worked out once, and sent as what has changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.figures.columns import BEYOND_S, Columns, by_name, fragment_columns
from malletrain.observer.history import History, changed_fragments

Patch = dict[str, list[tuple[int, Any]]]


@dataclass(frozen=True)
class Delta:
    """How columns have changed.

    Attributes:
        patch: Places and new values, by column.
        added: Values that follow, by column.
        whole: All columns anew; None: patch and added say it all.
    """

    patch: Patch
    added: Columns
    whole: Columns | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return self.whole is None and not self.patch and not any(self.added.values())


def delta_of(before: Mapping[str, Sequence[object]], after: Columns) -> Delta:
    """What has changed from columns to later ones that may be longer."""
    old = len(next(iter(before.values()), ()))
    new = len(next(iter(after.values()), ()))
    if new < old or before.keys() != after.keys():
        return Delta({}, {}, after)
    patch: Patch = {}
    for name, values in after.items():
        places = [(place, value) for place, value in enumerate(values[:old]) if value != before[name][place]]
        if len(places) > 64:
            return Delta({}, {}, after)
        if places:
            patch[name] = places
    return Delta(patch, {name: values[old:] for name, values in after.items()} if new > old else {})


class Series:
    """Columns of one figure with their version, and how they came from the version before."""

    def __init__(self, make: Callable[[History], Columns]) -> None:
        """Nothing is known yet.

        Args:
            make: The columns, from a history.
        """
        self.columns: Columns = {}
        self.version = 0
        self.delta = Delta({}, {}, {})
        self._make = make

    def refresh(self, history: History) -> None:
        """Take over what has happened."""
        after = self._make(history)
        self._changed(delta_of(self.columns, after) if self.version else Delta({}, {}, after), after)

    def _changed(self, delta: Delta, after: Columns) -> None:
        if not delta.is_empty:
            self.columns, self.delta = after, delta
            self.version += 1


class FragmentSeries(Series):
    """The fragments of all nodes: what has changed is found by identity, since there may be many thousand."""

    def __init__(self, colours: Colours, chosen: str) -> None:
        """Nothing is known yet.

        Args:
            colours: Theme.
            chosen: Job that stands out; empty: none.
        """
        super().__init__(lambda history: self._of(history, 0))
        self.rows: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self._colours, self._chosen = colours, chosen
        self._seen: History | None = None

    @property
    def names(self) -> list[str]:
        """Names of nodes, by row."""
        return list(self.rows)

    @property
    def texts(self) -> dict[str, list[str]]:
        """What the numbers of rows and labels stand for."""
        return {"node": list(self.rows), "job": list(self.labels)}

    def refresh(self, history: History) -> None:
        """Take over what has happened."""
        found = changed_fragments(self._seen, history) if self._seen is not None else None
        self._seen = history
        if found is None:
            self.rows = {
                name: row for row, name in enumerate(by_name({fragment.node for fragment in history.fragments}))
            }
            self.labels = {}
            whole = self._of(history, 0)
            self._changed(Delta({}, {}, whole), whole)
            return
        changed, first = found
        for fragment in history.fragments[first:]:
            self.rows.setdefault(fragment.node, len(self.rows))
        added = self._of(history, first) if first < len(history.fragments) else {}
        ends = [(place, _right(history, place)) for place in changed]
        for place, right in ends:
            self.columns["right"][place] = right
        for name, values in added.items():
            self.columns[name].extend(values)
        self._changed(Delta({"right": ends} if ends else {}, added), self.columns)

    def _of(self, history: History, first: int) -> Columns:
        names = {job.id: job.name for job in history.jobs.values()}
        fragments = history.fragments[first:]
        return fragment_columns(fragments, self.rows, self.labels, names, self._colours, self._chosen, history.now)


def _right(history: History, place: int) -> float:
    end = history.fragments[place].end
    return 1000.0 * (history.now + BEYOND_S if end is None else end)
