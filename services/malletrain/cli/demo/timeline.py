"""Draws a timeline of a run: a row for each node, coloured by job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # the back end must be chosen before
from matplotlib.patches import Patch

from malletrain.cli.demo.recorder import NodeInterval

_IDLE_COLOUR = "#e3e3e3"
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")


def draw_timeline(
    idle: Sequence[NodeInterval], training: Sequence[NodeInterval], names: dict[str, str], start: float, path: Path
) -> None:
    """Write a PNG file.

    Args:
        idle: Periods in which each node was idle.
        training: Periods in which a job trained on each node, labelled by job identifier.
        names: Names for the legend, by job identifier.
        start: Origin of the time axis in seconds since the epoch.
        path: The file.
    """
    nodes = sorted({interval.node for interval in idle})
    rows = {node: index for index, node in enumerate(nodes)}
    colours = {job_id: _COLOURS[index % len(_COLOURS)] for index, job_id in enumerate(names)}
    figure, axes = pyplot.subplots(figsize=(12, 1.2 + 0.45 * max(len(nodes), 3)), layout="constrained")
    for interval in idle:
        _bar(axes, rows[interval.node], interval, start, _IDLE_COLOUR, 0.8)
    for interval in training:
        if interval.node in rows and interval.label in colours:
            _bar(axes, rows[interval.node], interval, start, colours[interval.label], 0.6)
    axes.set_yticks(range(len(nodes)), nodes)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the start")
    axes.set_title("Nodes over time: white, taken by the main scheduler; grey, idle; coloured, training")
    handles = [Patch(color=colours[job_id], label=f"{job_id} {name}") for job_id, name in names.items()]
    handles.append(Patch(color=_IDLE_COLOUR, label="idle, not (yet) used"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bar(axes: pyplot.Axes, row: int, interval: NodeInterval, start: float, colour: str, height: float) -> None:
    axes.barh(row, interval.end - interval.start, left=interval.start - start, height=height, color=colour)
