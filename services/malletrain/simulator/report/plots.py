"""Plots with a common style."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

OURS, BASELINE, LIMIT, MUTED = "#1f6f8b", "#e07a3f", "#5b8c5a", "#9aa0a6"
_SIZE = (7.2, 3.6)
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Lines by label: x and y values."""


def lines(title: str, x: str, y: str, series: Series, *, log: bool = False, zero: bool = True) -> Figure:
    """Line plot, with markers if there are few points."""
    figure, axes = _axes(title, x, y)
    for (label, (places, values)), color in zip(series.items(), _colors(), strict=False):
        marker = "o" if len(places) <= 40 else None
        axes.plot(places, values, label=label, color=color, marker=marker, markersize=3.5, linewidth=1.4)
    if log:
        axes.set_yscale("log")
    elif zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return _legend(figure, series)


def steps(title: str, x: str, y: str, series: Series) -> Figure:
    """Filled step plots, one behind the other."""
    figure, axes = _axes(title, x, y)
    for (label, (places, values)), color in zip(series.items(), (MUTED, OURS), strict=False):
        axes.fill_between(places, values, step="post", label=label, color=color, linewidth=0.0, alpha=0.75)
    axes.set_ylim(bottom=0.0)
    return _legend(figure, series)


def bars(
    title: str, x: str, y: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, log: bool = False
) -> Figure:
    """Grouped bar chart."""
    figure, axes = _axes(title, x, y)
    width = 0.8 / max(1, len(series))
    for index, ((label, values), color) in enumerate(zip(series.items(), _colors(), strict=False)):
        places = [group - 0.4 + width * (index + 0.5) for group in range(len(groups))]
        axes.bar(places, values, width=width, label=label, color=color)
    axes.set_xticks(range(len(groups)), groups, rotation=45 if len(groups) > 12 else 0, fontsize=8)
    if log:
        axes.set_yscale("log")
    return _legend(figure, series)


def png(figure: Figure) -> bytes:
    """A figure as PNG. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def as_source(content: bytes) -> str:
    """A PNG as `src` of an image in an HTML page."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _axes(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure, series: Mapping[str, Any]) -> Figure:
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def _colors() -> Sequence[str]:
    return (OURS, BASELINE, LIMIT, "#7a5195", "#bc5090", MUTED, "#003f5c", "#ffa600", "#2f4b7c", "#665191")
