"""Chart of a scaling curve with the errors of its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.palette import BASELINE, LIMIT, MUTED, OURS
from malletrain.simulator.report.plots import Chart, lines

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
