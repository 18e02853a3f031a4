"""The HTML page of a replay: what it answers a manager, its charts, and all its figures, in a single file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from malletrain.common.files import write_atomically
from malletrain.simulator.replay.metrics import Metrics
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.report.answer_cards import cards_of, warnings_of
from malletrain.simulator.report.answers import Answers, Replayed
from malletrain.simulator.report.delays import MeasuredDelay
from malletrain.simulator.report.hourly_rates import HourlyRates
from malletrain.simulator.report.page import render
from malletrain.simulator.report.replay_charts import CaptionedChart, detail_charts, main_charts
from malletrain.simulator.report.svg import as_markup
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
        options: Its options.
        titles: What trace and jobs are called.
        answers: What it answers a manager.
        rates: What node-hours are counted in.
        metadata: The JSON beside the trace.
        said: Further sentences about the input.
        delay: How long main jobs wait, where that was measured.
    """

    replayed: Replayed
    options: ReplayOptions
    titles: Titles
    answers: Answers
    rates: HourlyRates = field(default_factory=HourlyRates)
    metadata: Mapping[str, object] = field(default_factory=dict)
    said: Sequence[str] = ()
    delay: MeasuredDelay | None = None


@dataclass(frozen=True)
class DrawnChart:
    """A chart on a page."""

    title: str
    caption: str
    markup: Markup

    @classmethod
    def of(cls, found: CaptionedChart) -> DrawnChart:
        """Draw a chart."""
        return cls(found.chart.title, found.caption, as_markup(found.chart))


def write_page(found: PageInput, folder: Path) -> list[Path]:
    """Write `report.html`, a self-contained page, and its charts as PNG into an existing folder.

    Raises:
        OSError: a file can't be written.
    """
    main, details = main_charts(found.replayed, found.answers), detail_charts(found.replayed)
    pictures = {folder / f"{entry.name}.png": entry.chart.png() for entry in (*main, *details)}
    content = page_of(found, main, details)
    for path, picture in pictures.items():
        path.write_bytes(picture)
    write_atomically(folder / PAGE, content)
    return [folder / PAGE, *pictures]


def page_of(found: PageInput, main: Sequence[CaptionedChart], details: Sequence[CaptionedChart]) -> str:
    """The page as HTML."""
    metrics, answers = found.replayed.evaluation.metrics, found.answers
    notes = notes_of(found.metadata)
    begin = moment_of(found.replayed.trace.origin, answers.duration_s)
    return render(
        "replay.html",
        titles=found.titles,
        dates="" if begin is None else f"{period(begin, answers.duration_s)} ({zone_of(begin.tzinfo)})",
        warnings=warnings_of(answers, notes, metrics.work_in_words(answers.duration_s)),
        cards=cards_of(answers, found.rates, found.delay, begin, notes, found.titles.jobs, found.options),
        charts=[DrawnChart.of(entry) for entry in main],
        notes=notes,
        assumptions=[*notes.assumptions, *found.said],
        options=found.options,
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
