"""Figure of a Kiviat graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from malletrain.simulator.report.plots import BASELINE, LIMIT, MUTED, OURS

_COLORS = (MUTED, BASELINE, LIMIT, "#7a5195", "#bc5090", "#003f5c", "#ffa600", OURS)


def kiviat_figure(title: str, axes: Sequence[str], rows: Mapping[str, Sequence[float]]) -> Figure:
    """One polygon for each method; the last one is filled."""
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    plot = figure.add_subplot(projection="polar")
    angles = [2 * math.pi * index / len(axes) for index in range(len(axes))]
    for index, (name, values) in enumerate(rows.items()):
        color = _COLORS[index % len(_COLORS)]
        closed = [*values, values[0]]
        plot.plot([*angles, angles[0]], closed, label=name, color=color, linewidth=1.3)
        if index == len(rows) - 1:
            plot.fill([*angles, angles[0]], closed, color=color, alpha=0.15)
    plot.set_xticks(angles, axes, fontsize=8)
    plot.set_yticks([0.25, 0.5, 0.75, 1.0], [""] * 4)
    plot.set_ylim(0, 1.02)
    plot.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure
