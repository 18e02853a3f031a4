"""The HTML page of a replay: its figures and plots in a single file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from malletrain.simulator.replay.evaluation import Evaluation
from malletrain.simulator.replay.metrics import cumulative_samples, sums_between
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.page import Plot, render
from malletrain.simulator.report.plots import bars, lines, png, steps

_HOUR_S = 3600.0
_SLICE_HOURS = 6


@dataclass(frozen=True)
class Titles:
    """Names of trace and job set on the page: without their folders, so that the page can be shared."""

    trace: str
    jobs: str


def write_page(evaluation: Evaluation, options: ReplayOptions, titles: Titles, folder: Path) -> list[Path]:
    """Write `report.html`, a self-contained page, and its figures as PNG into an existing folder.

    Raises:
        OSError: a file can't be written.
    """
    written = []
    plots = []
    for name, caption, figure in replay_figures(evaluation, options):
        content = png(figure)
        (folder / f"{name}.png").write_bytes(content)
        written.append(folder / f"{name}.png")
        plots.append(Plot(caption, content))
    page = folder / "report.html"
    page.write_text(
        render("replay.html", titles=titles, options=options, metrics=evaluation.metrics, plots=plots), encoding="utf-8"
    )
    return [page, *written]


def replay_figures(evaluation: Evaluation, options: ReplayOptions) -> list[tuple[str, str, Figure]]:
    """Name, caption and figure of each plot."""
    found = [_nodes(evaluation), _progress(evaluation, options), _costs(evaluation, options)]
    if evaluation.metrics.mean_runtime_hours:
        found.append(_runtimes(evaluation))
    return found


def _nodes(evaluation: Evaluation) -> tuple[str, str, Figure]:
    columns = evaluation.result.decisions
    hours = (columns["time_s"] / _HOUR_S).tolist()
    series = {"idle": (hours, columns["pool"].tolist()), "used by jobs": (hours, columns["used"].tolist())}
    figure = steps("Idle nodes and those in use", "hours", "nodes", series)
    return "nodes", "Nodes that the main scheduler leaves idle, and how many of them train.", figure


def _progress(evaluation: Evaluation, options: ReplayOptions) -> tuple[str, str, Figure]:
    times = np.linspace(0.0, options.duration_s, 337)
    hours = (times / _HOUR_S).tolist()
    series = {"this replay": (hours, cumulative_samples(evaluation.result.decisions, times.tolist()).tolist())}
    if evaluation.free is not None:
        free = cumulative_samples(evaluation.free.decisions, times.tolist())
        series["free rescaling"] = (hours, free.tolist())
    figure = lines("Samples processed, net", "hours", "samples", series)
    return "progress", "Samples over time. No allocator can do more than where rescaling is free.", figure


def _costs(evaluation: Evaluation, options: ReplayOptions) -> tuple[str, str, Figure]:
    edges = slices(options.duration_s)
    columns = evaluation.result.decisions
    groups = [f"{int(edge / _HOUR_S)}" for edge in edges[:-1]]
    invested = sums_between(columns, "invested_samples", edges)
    preempted = sums_between(columns, "preempted", edges)
    series = {"samples invested in rescaling": invested.tolist()}
    figure = bars("Cost of rescaling every six hours", "hours", "samples", groups, series)
    caption = f"What decisions to rescale cost; nodes were taken from jobs {int(preempted.sum())} times."
    return "costs", caption, figure


def _runtimes(evaluation: Evaluation) -> tuple[str, str, Figure]:
    runtimes = evaluation.metrics.mean_runtime_hours
    figure = bars("Mean runtime", "", "hours", list(runtimes), {"hours": list(runtimes.values())})
    return "runtimes", "From admission to the end, of the jobs that were done.", figure


def slices(duration_s: float) -> Sequence[float]:
    """Edges of six-hour slices, in seconds; the last one may be shorter."""
    edges = np.arange(0.0, duration_s, _SLICE_HOURS * _HOUR_S)
    return [*edges.tolist(), duration_s]
