"""The HTML page of a replay, with all its figures in a single file, and its tables as Parquet and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import pyarrow
from markupsafe import Markup
from pyarrow import parquet

from malletrain.common.files import write_atomically
from malletrain.simulator.replay.evaluation import Evaluation, Scenario
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import (
    DAY_S,
    HOUR_S,
    Columns,
    JobRecord,
    Metrics,
    cumulative_samples,
    idle_node_hours,
    integral_between,
    node_seconds,
    nodes_taken_back,
    slices_of,
    sums_between,
)
from malletrain.simulator.report.answer_cards import cards_of, warnings_of
from malletrain.simulator.report.answers import Answers, Estimate, HourlyRates, Replayed
from malletrain.simulator.report.axes import Axis, Kind, TimeAxis
from malletrain.simulator.report.delays import MeasuredDelay
from malletrain.simulator.report.page import as_markup, render
from malletrain.simulator.report.plots import Chart, Mark, bars, lines, stack_layers, time_bars
from malletrain.simulator.report.trace_notes import notes_of
from malletrain.simulator.report.wording import moment_of, number, period, share, zone_of

PAGE = "report.html"


@dataclass(frozen=True)
class Titles:
    """Names of trace and job set on the page: without their folders, so that the page can be shared."""

    trace: str
    jobs: str


@dataclass(frozen=True)
class PageInput:
    """What a page is of.

    Attributes:
        replayed: The replay.
        titles: What trace and jobs are called.
        answers: What it answers a manager.
        rates: What node-hours are counted in.
        metadata: The JSON beside the trace.
        remarks: Further sentences about the input.
        delay: How long main jobs wait, where that was measured.
    """

    replayed: Replayed
    options: ReplayOptions
    titles: Titles
    answers: Answers
    rates: HourlyRates = field(default_factory=HourlyRates)
    metadata: Mapping[str, object] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    delay: MeasuredDelay | None = None


@dataclass(frozen=True)
class DrawnChart:
    """A chart on a page."""

    title: str
    caption: str
    markup: Markup

    @classmethod
    def of(cls, captioned: CaptionedChart) -> DrawnChart:
        """Draw a chart."""
        return cls(captioned.chart.title, captioned.caption, as_markup(captioned.chart))


def write_page(page: PageInput, folder: Path) -> list[Path]:
    """Write `report.html`, a self-contained page, and its charts as PNG into an existing folder.

    Raises:
        OSError: a file can't be written.
    """
    main, details = main_charts(page.replayed, page.answers), detail_charts(page.replayed)
    pictures = {folder / f"{entry.name}.png": entry.chart.png() for entry in (*main, *details)}
    content = page_of(page, main, details)
    for path, picture in pictures.items():
        path.write_bytes(picture)
    write_atomically(folder / PAGE, content)
    return [folder / PAGE, *pictures]


def page_of(page: PageInput, main: Sequence[CaptionedChart], details: Sequence[CaptionedChart]) -> str:
    """The page as HTML."""
    metrics, answers = page.replayed.evaluation.metrics, page.answers
    notes = notes_of(page.metadata)
    begin = moment_of(page.replayed.trace.origin, answers.duration_s)
    return render(
        "replay.html",
        titles=page.titles,
        dates="" if begin is None else f"{period(begin, answers.duration_s)} ({zone_of(begin.tzinfo)})",
        warnings=warnings_of(answers, notes, metrics.work_in_words(answers.duration_s)),
        cards=cards_of(answers, page.rates, page.delay, begin, notes, page.titles.jobs, page.options),
        charts=[DrawnChart.of(entry) for entry in main],
        notes=notes,
        assumptions=[*notes.assumptions, *page.remarks],
        options=page.options,
        metrics=metrics,
        figures=figures_of(metrics),
        details=[DrawnChart.of(entry) for entry in details],
    )


def figures_of(metrics: Metrics) -> list[tuple[str, str]]:
    """All figures of a replay, for engineers."""
    return [
        ("Utilization efficiency U", share(metrics.utilization_efficiency)),
        ("U if rescaling were free", share(metrics.zero_cost_bound)),
        ("Idle node-hours (resource integral)", number(metrics.resource_integral_node_hours)),
        ("Equivalent nodes", number(metrics.equivalent_nodes, 1)),
        ("Idle node-hours that jobs held", share(metrics.occupied_fraction)),
        ("Samples processed, net", number(metrics.samples)),
        ("Samples lost to preemption", number(metrics.preemption_cost_samples)),
        ("Samples spent on rescaling", number(metrics.rescale_cost_samples)),
        ("Return on investment: samples for each one spent on rescaling", number(metrics.return_on_investment, 1)),
        ("Node events that a preemption follows within T_fwd", share(metrics.preemption_within_forward)),
        ("Times that a job lost nodes", number(metrics.preempted_jobs)),
        ("Rescales", number(metrics.rescales)),
        ("Jobs done", number(metrics.jobs_completed)),
        ("Node events", number(metrics.events)),
        ("Decisions", number(metrics.decisions)),
        *((f"Mean runtime, {model}", f"{number(hours, 2)} h") for model, hours in metrics.mean_runtime_hours.items()),
    ]


_MOMENTS = 240
"""Slices of a chart over time without gaps."""


@dataclass(frozen=True)
class CaptionedChart:
    """A chart with what it says."""

    name: str
    caption: str
    chart: Chart


def main_charts(replayed: Replayed, answers: Answers) -> list[CaptionedChart]:
    """The charts with the answers: idle nodes over time, how even they are, how often they are taken back."""
    scenario = replayed.scenario
    x = TimeAxis.of(replayed.trace.origin, scenario.duration_s)
    charts = [_nodes(x, scenario, replayed.evaluation)]
    if answers.gain.idle_share is not None:
        charts.append(_shares(x, replayed, answers.gain.idle_share))
    if answers.cost.taken_back:
        charts.append(_taken_back(x, scenario))
    return charts


def detail_charts(replayed: Replayed) -> list[CaptionedChart]:
    """The charts for engineers: samples, costs of rescaling, runtimes."""
    x, evaluation = TimeAxis.of(replayed.trace.origin, replayed.scenario.duration_s), replayed.evaluation
    charts = [_progress(x, evaluation), _costs(x, evaluation)]
    runtimes = evaluation.metrics.mean_runtime_hours
    chart = bars("Mean runtime of the jobs that were done", "hours", list(runtimes), {"hours": list(runtimes.values())})
    if chart is not None:
        charts.append(CaptionedChart("runtimes", "From admission to the end.", chart))
    return charts


def _nodes(x: TimeAxis, scenario: Scenario, evaluation: Evaluation) -> CaptionedChart:
    edges = np.linspace(0.0, scenario.duration_s, _MOMENTS + 1)
    lengths = np.diff(edges)
    decisions = evaluation.result.decisions
    idle = idle_node_hours(scenario.events, edges) * HOUR_S / lengths
    used = integral_between(decisions["time_s"], decisions["used"], edges) / lengths
    layers = {"trained on": used.tolist(), "idle, not used": np.maximum(idle - used, 0.0).tolist()}
    held = float(used.sum() / idle.sum()) if idle.sum() else 0.0
    chart = stack_layers("Idle nodes, and what is trained on", x, "nodes", edges, layers)
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


EVENTS, JOBS, METRICS = "events.parquet", "jobs.parquet", "metrics.json"


def write_tables(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write the tables of a replay into an existing folder. The same replay gives the same bytes.

    Raises:
        OSError: a file can't be written.
    """
    result = evaluation.result
    parquet.write_table(decision_table(result.decisions), folder / EVENTS)
    parquet.write_table(job_table(result.jobs), folder / JOBS)
    write_atomically(folder / METRICS, json.dumps(asdict(evaluation.metrics), indent=2) + "\n")
    return [folder / EVENTS, folder / JOBS, folder / METRICS]


def decision_table(columns: Columns) -> pyarrow.Table:
    """One row per decision; columns as in `Decision`."""
    return pyarrow.table(dict(columns))


def job_table(jobs: tuple[JobRecord, ...]) -> pyarrow.Table:
    """One row per job; columns as in `JobRecord`."""
    rows: Mapping[str, list[object]] = {
        field.name: [getattr(job, field.name) for job in jobs] for field in fields(JobRecord)
    }
    return pyarrow.table(rows)
