"""The figures of how long nodes stay idle, by Bokeh."""

from __future__ import annotations

from typing import Any

from bokeh.models import ColumnDataSource, NumeralTickFormatter

from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.figures.plots import from_zero, legend_above, plain
from malletrain.dashboard.figures.ticks import label_durations


def _mark_age(plot: Any, mark: ColumnDataSource | None, y: str, node: str, colours: Colours) -> None:
    """Mark how long the chosen node has been idle by now."""
    if mark is not None:
        point = {"size": 13, "marker": "diamond", "color": colours.text, "legend_label": f"{node} now"}
        plot.scatter(source=mark, x="seconds", y=y, **point)
        legend_above(plot)


def survival_figure(
    source: ColumnDataSource, colours: Colours, mark: ColumnDataSource | None = None, node: str = ""
) -> Any:
    """How long nodes stay idle, and how long the chosen node has been."""
    plot = plain("survival", 260, "idle for", "share that lasts longer")
    label_durations(plot.xaxis)
    plot.y_range.end = 1.02
    from_zero(plot, plot.x_range, plot.y_range)
    plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
    plot.line(source=source, x="seconds", y="share", color=colours.first, line_width=2.5)
    _mark_age(plot, mark, "share", node, colours)
    return plot


def stay_figure(
    source: ColumnDataSource, colours: Colours, mark: ColumnDataSource | None = None, node: str = ""
) -> Any:
    """How much longer a node stays that has been idle for a time, and how long the chosen node has been."""
    plot = plain("stay", 260, "idle for so far", "expected further stay")
    label_durations(plot.xaxis, plot.yaxis)
    from_zero(plot, plot.x_range, plot.y_range)
    plot.line(source=source, x="seconds", y="stay", color=colours.second, line_width=2.5)
    _mark_age(plot, mark, "stay", node, colours)
    return plot
