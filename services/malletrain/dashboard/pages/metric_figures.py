"""The figures of what a job's script has logged: one for each metric, added when the first value is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource

from malletrain.dashboard.figures import plots
from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.figures.columns import Columns
from malletrain.v1 import monitor_pb2

MOST = 12
"""Metrics that are shown, by name."""


class MetricFigures:
    """The figures of one page.

    Attributes:
        layout: What holds them, one above the other.
    """

    def __init__(self, times: Any, marks: ColumnDataSource, colours: Colours, prepare: Callable[[Any], object]) -> None:
        """None yet.

        Args:
            times: Range of the times that all figures of the page show.
            marks: Rescales and preemptions: `time` and `colour`.
            colours: Colours of the theme.
            prepare: Called with each new figure.
        """
        self.layout = column(children=[], name="metrics", sizing_mode="stretch_width")
        self._times = times
        self._marks = marks
        self._colours = colours
        self._prepare = prepare
        self._sources: dict[str, ColumnDataSource] = {}

    def show(self, histories: Sequence[monitor_pb2.MetricHistory]) -> None:
        """Bring them up to date."""
        added = []
        for history in histories[:MOST]:
            data = metric_columns(history)
            if (source := self._sources.get(history.name)) is not None:
                source.data = data
                continue
            source = self._sources[history.name] = ColumnDataSource(data=data)
            number = len(self._sources)
            plot = plots.metric_figure(number, history.name, self._times, source, self._marks, self._colours)
            self._prepare(plot)
            added.append(plot)
        if added:
            self.layout.children = [*self.layout.children, *added]


def metric_columns(history: monitor_pb2.MetricHistory) -> Columns:
    """What a script has logged of one metric."""
    return {
        "time": [1000.0 * point.unix_seconds for point in history.points],
        "step": [point.step for point in history.points],
        "value": [point.value for point in history.points],
        "least": [point.least for point in history.points],
        "most": [point.most for point in history.points],
        "values": [point.values for point in history.points],
    }


def metrics_columns(histories: Iterable[monitor_pb2.MetricHistory]) -> Columns:
    """What a script has logged of all metrics, one after the other."""
    found: dict[str, list[Any]] = {"metric": []}
    for history in histories:
        found["metric"] += [history.name] * len(history.points)
        for name, values in metric_columns(history).items():
            found.setdefault(name, []).extend(values)
    return found
