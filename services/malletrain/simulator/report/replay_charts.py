"""The charts of a replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from malletrain.simulator.replay.evaluation import Evaluation, Scenario
from malletrain.simulator.replay.metrics import cumulative_samples, sums_between
from malletrain.simulator.replay.slices import (
    DAY_S,
    HOUR_S,
    idle_node_hours,
    integral_between,
    node_seconds,
    nodes_taken_back,
    slices_of,
)
from malletrain.simulator.report.answers import Answers, Replayed
from malletrain.simulator.report.axes import Axis, Kind, TimeAxis
from malletrain.simulator.report.intervals import Estimate
from malletrain.simulator.report.plots import Chart, Mark, bars, lines, stacked, time_bars

_MOMENTS = 240
"""Slices of a chart over time without gaps."""


@dataclass(frozen=True)
class CaptionedChart:
    """A chart with what it says.

    Attributes:
        name: Stem of its file.
        caption: What it says, in sentences.
        chart: The chart.
    """

    name: str
    caption: str
    chart: Chart


def main_charts(replayed: Replayed, answers: Answers) -> list[CaptionedChart]:
    """Those that answer: idle nodes over time, how even they are, how often they are taken back."""
    scenario = replayed.scenario
    x = TimeAxis.of(replayed.trace.origin, scenario.duration_s)
    found = [_nodes(x, scenario, replayed.evaluation)]
    if answers.gain.idle_share is not None:
        found.append(_shares(x, replayed, answers.gain.idle_share))
    if answers.cost.taken_back:
        found.append(_taken_back(x, scenario))
    return found


def detail_charts(replayed: Replayed) -> list[CaptionedChart]:
    """Those for engineers: samples, costs of rescaling, runtimes."""
    x, evaluation = TimeAxis.of(replayed.trace.origin, replayed.scenario.duration_s), replayed.evaluation
    found = [_progress(x, evaluation), _costs(x, evaluation)]
    runtimes = evaluation.metrics.mean_runtime_hours
    chart = bars("Mean runtime of the jobs that were done", "hours", list(runtimes), {"hours": list(runtimes.values())})
    if chart is not None:
        found.append(CaptionedChart("runtimes", "From admission to the end.", chart))
    return found


def _nodes(x: TimeAxis, scenario: Scenario, evaluation: Evaluation) -> CaptionedChart:
    edges = np.linspace(0.0, scenario.duration_s, _MOMENTS + 1)
    lengths = np.diff(edges)
    decisions = evaluation.result.decisions
    idle = idle_node_hours(scenario.events, edges) * HOUR_S / lengths
    used = integral_between(decisions["time_s"], decisions["used"], edges) / lengths
    layers = {"trained on": used.tolist(), "idle, not used": np.maximum(idle - used, 0.0).tolist()}
    held = float(used.sum() / idle.sum()) if idle.sum() else 0.0
    chart = stacked("Idle nodes, and what is trained on", x, "nodes", edges, layers)
    caption = f"Nodes that the main queue leaves idle. The trainings hold {100 * held:.1f} % of these node-hours."
    return CaptionedChart("nodes", caption, chart)


def _shares(x: TimeAxis, replayed: Replayed, mean: Estimate) -> CaptionedChart:
    slices = slices_of(x.duration_s)
    whole = node_seconds(replayed.trace, slices.edges) / HOUR_S
    idle = idle_node_hours(replayed.scenario.events, slices.edges)
    shares = np.divide(idle, whole, out=np.zeros_like(idle), where=whole > 0)
    label = "mean" if mean.low is None else "mean, 95 % interval"
    chart = time_bars(
        f"Idle share of all node-hours, {slices.words}",
        x,
        Axis(kind=Kind.SHARE, zero=True),
        slices.edges,
        {"idle share": shares.tolist()},
        marks=[Mark(label, mean.value, mean.low, mean.high)],
    )
    caption = f"From {100 * shares.min():.1f} % to {100 * shares.max():.1f} %."
    return CaptionedChart("idle-share", caption, chart)


def _taken_back(x: TimeAxis, scenario: Scenario) -> CaptionedChart:
    slices = slices_of(scenario.duration_s)
    unit_s, unit = (DAY_S, "a day") if scenario.duration_s >= 2 * DAY_S else (HOUR_S, "an hour")
    # The last slice may be shorter than the others.
    rates = (nodes_taken_back(scenario.events, slices.edges) * unit_s / slices.lengths).tolist()
    chart = time_bars("Nodes that are taken back", x, f"nodes {unit}", slices.edges, {"nodes": rates})
    return CaptionedChart("taken-back", "Each time, trainings on the node make room at once.", chart)


def _progress(x: TimeAxis, evaluation: Evaluation) -> CaptionedChart:
    times = np.linspace(0.0, x.duration_s, _MOMENTS + 1)
    series = {"this replay": (times.tolist(), cumulative_samples(evaluation.result.decisions, times.tolist()).tolist())}
    if evaluation.free is not None:
        free = cumulative_samples(evaluation.free.decisions, times.tolist())
        series["if rescaling were free"] = (times.tolist(), free.tolist())
    chart = lines("Samples processed, net of losses", x, Axis("samples", zero=True), series)
    return CaptionedChart("progress", "No allocator can do more than where rescaling is free.", chart)


def _costs(x: TimeAxis, evaluation: Evaluation) -> CaptionedChart:
    slices = slices_of(x.duration_s)
    decisions = evaluation.result.decisions
    edges = slices.edges.tolist()
    series = {
        "rescaling": sums_between(decisions, "invested_samples", edges).tolist(),
        "nodes taken back": sums_between(decisions, "preemption_samples", edges).tolist(),
    }
    chart = time_bars(f"Samples lost, {slices.words}", x, Axis("samples", zero=True), slices.edges, series)
    return CaptionedChart("costs", "What decisions to rescale cost, and what nodes that leave take with them.", chart)
