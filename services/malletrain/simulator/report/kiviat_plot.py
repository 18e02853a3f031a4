"""Chart of a Kiviat graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from malletrain.simulator.report.palette import FAINT, OURS, SERIES
from malletrain.simulator.report.plots import Chart, as_label, legend, new_axes

_HEIGHT_INCHES = 5.4


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

    return Chart(title, draw, _HEIGHT_INCHES)
