"""Charts with a common style, drawn anew for each size in which they are shown."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from malletrain.simulator.report.axes import Axis, TimeAxis
from malletrain.simulator.report.palette import BACKGROUND, BASELINE, FAINT, GRID, LIMIT, MUTED, OURS, SERIES, TEXT

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Lines by label: x and y values."""
WIDE_INCHES, NARROW_INCHES = 11.0, 4.3
_HEIGHT_INCHES = 3.6
_LEGEND_POINTS = (34.0, 5.3)
"""Width of an entry of a legend: of its sign, and of each letter."""
_MAX_LABEL = 60
_THEIRS: dict[str, Any] = {
    "color": TEXT,
    "marker": "D",
    "markersize": 7,
    "markerfacecolor": BACKGROUND,
    "linestyle": "--",
    "linewidth": 1.2,
}
"""How what a paper reports is drawn."""


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows.
        draw: Draws it on a new figure, whose size says how much room there is.
        height: Height in inches.
    """

    title: str
    draw: Callable[[Figure], None]
    height: float = _HEIGHT_INCHES

    def figure(self, width: float = WIDE_INCHES, *, titled: bool = True) -> Figure:
        """Draw it.

        Args:
            width: Width in inches.
            titled: Whether the title stands above it.
        """
        figure = Figure(figsize=(width, self.height), layout="constrained", facecolor=BACKGROUND)
        self.draw(figure)
        if titled:
            figure.axes[0].set_title(as_label(self.title), fontsize=11, loc="left", color=TEXT)
        return figure

    def png(self) -> bytes:
        """The chart as a PNG, for slides. The same chart gives the same bytes."""
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", dpi=130, metadata={"Software": None})
        return buffer.getvalue()


def lines(
    title: str, x: Axis | TimeAxis | str, y: Axis | str, series: Series, *, published: Series | None = None
) -> Chart:
    """Lines, with markers where there are few points.

    Args:
        title: What the chart shows.
        x: Its x axis.
        y: Its y axis.
        series: Lines by label.
        published: What a paper reports, drawn dashed and hollow, in the colour of our line of the same label.
    """
    theirs = published or {}
    colours = dict(zip(series, SERIES, strict=False))

    def draw(figure: Figure) -> None:
        axes = new_axes(figure)
        for label, (places, values) in series.items():
            marker = "o" if len(places) <= 40 else None
            style = {"color": colours.get(label, MUTED), "marker": marker, "markersize": 4, "linewidth": 1.7}
            axes.plot(_places_on(x, places), values, label=as_label(label), **style)
        for label, (places, values) in theirs.items():
            axes.plot(_places_on(x, places), values, **_THEIRS | {"color": colours.get(label, MUTED)})
        if theirs:
            axes.plot([], [], label="published", **_THEIRS)
        every = [*series.values(), *theirs.values()]
        _set_up(axes, x, y, [entry[0] for entry in every], [entry[1] for entry in every])
        legend(figure)

    return Chart(title, draw)


def stack_layers(
    title: str, x: TimeAxis, y: Axis | str, edges_s: ArrayLike, layers: Mapping[str, Sequence[float]]
) -> Chart:
    """Layers over time, one on the other, so that none is behind another.

    Args:
        title: What the chart shows.
        x: Its time.
        y: Its y axis.
        edges_s: Begins of slices in seconds, and the end of the last one; shape (slices + 1,).
        layers: Values of the slices by label, from below; a layer of less than half a per cent of all is left out.
    """
    whole = sum(float(np.sum(values)) for values in layers.values())
    large_layers = {label: values for label, values in layers.items() if float(np.sum(values)) >= 0.005 * whole}

    def draw(figure: Figure) -> None:
        axes = new_axes(figure)
        base = np.zeros(len(np.asarray(edges_s)) - 1)
        for (label, values), colour in zip(large_layers.items(), (OURS, SERIES[4], MUTED), strict=False):
            top = base + np.asarray(values, np.float64)
            places = x.places(edges_s)
            axes.stairs(top, places, baseline=base, fill=True, color=colour, label=as_label(label), linewidth=0.0)
            base = top
        _set_up(axes, x, y, [], [base])
        legend(figure)

    return Chart(title, draw)


@dataclass(frozen=True)
class Mark:
    """A level that is marked across a chart.

    Attributes:
        label: What it is.
        value: Where it is.
        low: Lower end of its interval; None: there is none.
        high: Upper end.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def time_bars(
    title: str,
    x: TimeAxis,
    y: Axis | str,
    edges_s: ArrayLike,
    series: Mapping[str, Sequence[float]],
    *,
    marks: Sequence[Mark] = (),
) -> Chart:
    """Bars for slices of time.

    Args:
        title: What the chart shows.
        x: Its time.
        y: Its y axis.
        edges_s: Begins of slices in seconds, and the end of the last one; shape (slices + 1,).
        series: Values of the slices by label.
        marks: Levels to mark.
    """

    def draw(figure: Figure) -> None:
        axes = new_axes(figure)
        places = x.places(edges_s)
        widths = 0.86 * np.diff(places) / max(1, len(series))
        for index, ((label, values), colour) in enumerate(zip(series.items(), SERIES, strict=False)):
            left = places[:-1] + 0.07 * np.diff(places) + widths * index
            axes.bar(left, values, width=widths, align="edge", label=as_label(label), color=colour)
        for mark, colour in zip(marks, SERIES[len(series) :], strict=False):
            axes.axhline(mark.value, color=colour, linewidth=1.4, label=as_label(mark.label))
            if mark.low is not None and mark.high is not None:
                axes.axhspan(mark.low, mark.high, color=colour, alpha=0.22, linewidth=0.0, zorder=0.5)
        _set_up(axes, x, y, [], [*series.values(), *([mark.value] for mark in marks)])
        legend(figure, first=list(series))

    return Chart(title, draw)


def bars(
    title: str,
    y: Axis | str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    published: Mapping[str, Sequence[float | None]] | None = None,
) -> Chart | None:
    """Grouped bars; None where there is a single one, which shows nothing that its number does not.

    Args:
        title: What the chart shows.
        y: Its y axis.
        groups: Names of the groups.
        series: A value for each group by label; None: there is none.
        published: What a paper reports, as hollow marks at our bars of the same label.
    """
    if len(groups) * len(series) < 2:
        return None
    theirs = {
        label: values for label, values in (published or {}).items() if any(value is not None for value in values)
    }

    def draw(figure: Figure) -> None:
        axes = new_axes(figure)
        width = 0.84 / max(1, len(series))
        for index, ((label, values), colour) in enumerate(zip(series.items(), SERIES, strict=False)):
            places = [group - 0.42 + width * (index + 0.5) for group in range(len(groups))]
            heights = [np.nan if value is None else value for value in values]
            axes.bar(places, heights, width=0.94 * width, label=as_label(label), color=colour)
            if label in theirs:
                at = [np.nan if value is None else value for value in theirs[label]]
                axes.plot(places, at, **_THEIRS | {"linestyle": "none"})
        if theirs:
            axes.plot([], [], label="published", **_THEIRS | {"linestyle": "none"})
        _set_up(axes, Axis(), y, [], [*_known_values(series), *_known_values(theirs)])
        _label_groups(axes, groups, figure)
        legend(figure, first=list(series))

    return Chart(title, draw)


def as_label(text: str) -> str:
    """A text as a label: dollars are no formulas, what can't be printed stands for nothing, and long ones are cut."""
    text = text if len(text) <= _MAX_LABEL else f"{text[:_MAX_LABEL]}…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text).replace("$", r"\$")


def new_axes(figure: Figure, **options: Any) -> Any:
    """Axes in the common style."""
    axes = figure.add_subplot(facecolor="none", **options)
    axes.tick_params(colors=FAINT, labelsize=9)
    axes.grid(visible=True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom", "polar"))
        spine.set_color(FAINT if side != "polar" else GRID)
    return axes


def legend(figure: Figure, first: Sequence[str] = ()) -> None:
    """Put a legend below, in as many columns as there is room for, where there is more than one entry.

    Args:
        first: Entries that come before the others.
    """
    names = [as_label(name) for name in first]
    entries = list(zip(*figure.axes[0].get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: names.index(entry[1]) if entry[1] in names else len(names))
    if len(entries) < 2:
        return
    handles, labels = [entry[0] for entry in entries], [str(entry[1]) for entry in entries]
    sign, letter = _LEGEND_POINTS
    each = sign + letter * max(len(label) for label in labels)
    columns = max(1, min(len(labels), int(72.0 * figure.get_figwidth() / each)))
    placed = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend(handles, labels, labelcolor=TEXT, **placed)


def _known_values(series: Mapping[str, Sequence[float | None]]) -> list[list[float]]:
    return [[value for value in values if value is not None] for values in series.values()]


def _places_on(x: Axis | TimeAxis | str, places: Sequence[float]) -> ArrayLike:
    return x.places(places) if isinstance(x, TimeAxis) else places


def _set_up(
    axes: Any, x: Axis | TimeAxis | str, y: Axis | str, places: Sequence[ArrayLike], values: Sequence[ArrayLike]
) -> None:
    up = Axis(y, zero=True) if isinstance(y, str) else y
    if isinstance(x, TimeAxis):
        x.set_up(axes)
    else:
        (Axis(x) if isinstance(x, str) else x).set_up(axes.xaxis, _together(places))
    up.set_up(axes.yaxis, _together(values))
    if up.zero and not up.log:
        low, high = axes.get_ylim()
        bottom = low if np.min(_together(values), initial=0.0) < 0 else 0.0
        axes.set_ylim(bottom, high + 0.03 * (high - bottom))
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=FAINT, size=9)


def _together(values: Sequence[ArrayLike]) -> ArrayLike:
    return np.concatenate([np.asarray(part, np.float64).ravel() for part in values]) if values else np.zeros(0)


def _label_groups(axes: Any, groups: Sequence[str], figure: Figure) -> None:
    """Names of groups: turned where they are too long to stand beside each other."""
    room = 72.0 * 0.88 * figure.get_figwidth() / len(groups)
    names = [as_label(group) for group in groups]
    turned = max(map(len, names)) * 5.0 > room
    axes.set_xticks(
        range(len(groups)), names, fontsize=9, rotation=35 if turned else 0, ha="right" if turned else "center"
    )
    axes.tick_params(axis="x", length=0)


_COLORS = {"measured": OURS, "family": LIMIT, "declared": BASELINE}


@dataclass(frozen=True)
class CurveMark:
    """A point of the curve: nodes, samples/s, relative error, and its source."""

    nodes: int
    rate: float
    error: float
    source: str


def curve_chart(title: str, marks: Sequence[CurveMark]) -> Chart:
    """Throughput by nodes, with measured points highlighted and linear scaling from the first point for comparison."""
    nodes, rates = [mark.nodes for mark in marks], [mark.rate for mark in marks]
    series: dict[str, tuple[Sequence[float], Sequence[float]]] = {"curve": (nodes, rates)}
    if marks:
        series["linear"] = ([0, nodes[-1]], [0.0, rates[0] / nodes[0] * nodes[-1]])
    chart = lines(title, "nodes", Axis("samples/s", zero=True), series)

    def draw(figure: Figure) -> None:
        chart.draw(figure)
        for source in sorted({mark.source for mark in marks}):
            chosen = [mark for mark in marks if mark.source == source]
            figure.axes[0].errorbar(
                [mark.nodes for mark in chosen],
                [mark.rate for mark in chosen],
                yerr=[mark.rate * mark.error for mark in chosen],
                fmt="o",
                markersize=5,
                capsize=3,
                color=_COLORS.get(source, MUTED),
            )

    return replace(chart, draw=draw)


_KIVIAT_HEIGHT_INCHES = 5.4


def kiviat_chart(title: str, axes: Sequence[str], rows: Mapping[str, Sequence[float]]) -> Chart:
    """One polygon for each method; the last one is filled."""
    angles = [2 * math.pi * index / len(axes) for index in range(len(axes))]
    *others, last = rows
    colours = dict(zip([last, *others], SERIES, strict=False))

    def draw(figure: Figure) -> None:
        plot = new_axes(figure, projection="polar")
        for name, values in rows.items():
            closed = [*values, values[0]]
            style = {"color": colours.get(name, FAINT), "linewidth": 2.2 if name == last else 1.3}
            plot.plot([*angles, angles[0]], closed, label=as_label(name), **style)
        plot.fill([*angles, angles[0]], [*rows[last], rows[last][0]], color=OURS, alpha=0.15)
        plot.set_xticks(angles, [as_label(axis) for axis in axes], fontsize=9)
        plot.tick_params(axis="x", pad=14)
        plot.set_yticks([0.25, 0.5, 0.75, 1.0], [""] * 4)
        plot.set_ylim(0, 1.02)
        legend(figure)

    return Chart(title, draw, _KIVIAT_HEIGHT_INCHES)
