"""The page of one job. What only its owner may see is asked for in the viewer's name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import grpc.aio
from bokeh.layouts import column
from bokeh.models import ColumnDataSource
from markupsafe import escape

from malletrain.dashboard.figures import columns, plots
from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.figures.columns import Columns, Series
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.actions import actions_html, job_actions
from malletrain.dashboard.pages.job_answers import (
    job_manager,
    journal_of,
    metrics_of,
    no_answer_in_words,
    profile_of,
)
from malletrain.dashboard.pages.markup import Cell, Regions, Row, Section
from malletrain.dashboard.pages.page import Page
from malletrain.model.job_groups import search_of
from malletrain.observer import intake, job_intake
from malletrain.observer.eta import eta, idle_quantiles
from malletrain.observer.facts import HeldFact
from malletrain.observer.history import History
from malletrain.observer.job_facts import CurveFact, JobFact, ProgressFact
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2

MAX_METRICS = 12
"""Metrics that are shown, by name."""


class MetricFigures:
    """The figures of one page."""

    def __init__(self, times: Any, marks: ColumnDataSource, colours: Colours, prepare: Callable[[Any], object]) -> None:
        """
        Args:
            marks: Rescales and preemptions: `time` and `colour`.
            prepare: Called with each new figure.
        """
        self.layout = column(children=[], name="metrics", sizing_mode="stretch_width")
        self._times = times
        self._marks = marks
        self._colours = colours
        self._prepare = prepare
        self._sources: dict[str, ColumnDataSource] = {}

    def show(self, histories: Sequence[monitor_pb2.MetricHistory]) -> None:
        """Bring them up to date."""
        added = []
        for history in histories[:MAX_METRICS]:
            data = metric_columns(history)
            if (source := self._sources.get(history.name)) is not None:
                source.data = data
                continue
            source = self._sources[history.name] = ColumnDataSource(data=data)
            number = len(self._sources)
            plot = plots.metric_figure(number, history.name, self._times, source, self._marks, self._colours)
            self._prepare(plot)
            added.append(plot)
        if added:
            self.layout.children = [*self.layout.children, *added]


def metric_columns(history: monitor_pb2.MetricHistory) -> Columns:
    """What a script has logged of one metric."""
    return {
        "time": [1000.0 * point.unix_seconds for point in history.points],
        "step": [point.step for point in history.points],
        "value": [point.value for point in history.points],
        "least": [point.least for point in history.points],
        "most": [point.most for point in history.points],
        "values": [point.values for point in history.points],
    }


def metrics_columns(histories: Iterable[monitor_pb2.MetricHistory]) -> Columns:
    """What a script has logged of all metrics, one after the other."""
    values_by_column: dict[str, list[Any]] = {"metric": []}
    for history in histories:
        values_by_column["metric"] += [history.name] * len(history.points)
        for name, values in metric_columns(history).items():
            values_by_column.setdefault(name, []).extend(values)
    return values_by_column


_LOG_LINES = 200
_MAX_EVENTS = 1000
_MAX_LINE_LENGTH = 500
_METRIC_POINTS = 256
_LATEST_MS = 250_000_000_000_000
"""In the year 9892: Python knows no dates after 9999."""
_NO_TIME = "-" * len("2026-01-31 12:00:00")
_KINDS = {
    resources_pb2.JOB_REASON_PLAN_STARTED: "start",
    resources_pb2.JOB_REASON_PLAN_RESCALED: "rescale",
    resources_pb2.JOB_REASON_PLAN_MOVED: "move",
    resources_pb2.JOB_REASON_PREEMPTED: "preemption",
    resources_pb2.JOB_REASON_PREEMPTED_BELOW_MINIMUM: "preemption",
    resources_pb2.JOB_REASON_PREEMPTED_STATE_LOST: "preemption",
    resources_pb2.JOB_REASON_WORKER_FAILED: "failure",
}
_MARKERS = {"start": "triangle", "rescale": "circle", "move": "square", "preemption": "x", "failure": "star"}
_SOURCES = {
    "measured": "circle",
    "declared": "square",
    "family": "triangle",
    "extrapolated": "diamond",
    "prior": "cross",
}

_SECTIONS = (
    Section("facts", "facts"),
    Section("links", "together"),
    Section("text", "actions"),
    Section("figure", "scale", "Nodes", "As commanded, by the journal, with what changed them.", half=True),
    Section("figure", "rate", "Rate", "Samples per second of all workers together, as Monitor measures it.", half=True),
    Section(
        "figure",
        "curve",
        "Scaling curve",
        "What the Allocator believes: rates with their 95 % intervals, and where each comes from. "
        "Dashed: the shape that was fitted to the measured ones.",
        half=True,
    ),
    Section("figure", "stalls", "Stalls", "How long training stood still for each measured rescale.", half=True),
    Section(
        "figure",
        "metrics",
        "Metrics",
        "What its script logs with log_metrics. Only its owner and operators see it. Dashed lines: what changed its "
        "nodes, in the colours of the figure Nodes.",
    ),
    Section("table", "journal", "Journal", "Newest first.", ("time", "state", "nodes", "why"), (2,), half=True),
    Section(
        "log",
        "log",
        "Log",
        "What its workers wrote last, with the times by when it was written. Only its owner and operators may read it.",
        half=True,
    ),
)


@dataclass(frozen=True)
class Own:
    """What was answered in the viewer's name.

    Attributes:
        job: The job; None before the first answer.
        events: Rows of its journal, oldest first.
        log: Last lines of its log, with the times by when they were written, in milliseconds since the epoch.
        log_error: Why there are none; empty if there are.
        metrics: What its script has logged.
        error: Why there is no answer; empty if there is.
        version: Grows with every answer that differs.
    """

    job: resources_pb2.Job | None = None
    events: tuple[job_manager_pb2.JobEvent, ...] = ()
    curve: CurveFact | None = None
    log: tuple[tuple[str, int], ...] = ()
    log_error: str = ""
    metrics: tuple[monitor_pb2.MetricHistory, ...] = ()
    error: str = ""
    version: int = field(default=0, compare=False)


class JobPage(Page):
    """One job."""

    name = "job"
    title = "Job"
    sections = _SECTIONS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.job_id = self.selection.job
        self.title = f"Job {self.job_id}" if self.job_id else "Job"
        self._own = Own()
        self._asked: tuple[JobFact | None, float] = (None, 0.0)
        self._drawn = -1

    def own_key(self) -> Hashable:
        """The answers are this viewer's alone."""
        return (id(self), self._own.version)

    def figures(self) -> list[Any]:
        """Its figures."""
        job_id = self.job_id
        kinds = {"growth": self.colours.second, "shrink": self.colours.first}
        marks = {"growth": "triangle", "shrink": "inverted_triangle"}

        def stalls(history: History) -> columns.Columns:
            stall_marks = columns.stall_columns(history.stalls.get(job_id, ()))
            return stall_marks | {
                "colour": [kinds[kind] for kind in stall_marks["kind"]],
                "marker": [marks[kind] for kind in stall_marks["kind"]],
            }

        def rates(history: History) -> columns.Columns:
            return columns.rate_columns(history.rates.get(job_id, ()))

        _, rate = self.series(("rate", job_id), lambda: Series(rates))
        _, stalled = self.series(("stalls", job_id, self.theme), lambda: Series(stalls))
        self._scale = ColumnDataSource(data=columns.scale_columns((), 0.0))
        self._marks = ColumnDataSource(data=self._mark_columns())
        self._curve, self._fit = ColumnDataSource(), ColumnDataSource()
        curve = plots.curve_figure(self._curve, self._fit, self.colours)
        self._fit_shown = curve.legend[0].items[0]
        self._draw_curve()
        self._metrics = MetricFigures(self.times, self._marks, self.colours, self.follow_ranges)
        self._metrics.show(self._own.metrics)
        return [
            plots.scale_figure(self.times, self._scale, self._marks, self.colours),
            plots.rate_figure(self.times, rate, self.colours),
            curve,
            plots.stalls_figure(self.times, stalled),
            self._metrics.layout,
        ]

    def on_refreshed(self) -> None:
        """Draw what was answered."""
        rows = [intake.held_fact(event) for event in self._own.events]
        if rows or self._own.version != self._drawn:
            self._scale.data = columns.scale_columns(rows, self._scale_end(rows))
        if self._own.version != self._drawn:
            self._marks.data = self._mark_columns()
            self._metrics.show(self._own.metrics)
            self._drawn = self._own.version
        if self._curve_fact() is not self._curve_drawn:
            self._draw_curve()

    def _draw_curve(self) -> None:
        self._curve_drawn = self._curve_fact()
        self._curve.data = self._curve_columns()
        self._fit.data = columns.fit_columns(self._curve_drawn)
        self._fit_shown.visible = bool(self._fit.data["nodes"])

    def _scale_end(self, rows: list[HeldFact]) -> float:
        job = self.history.jobs.get(self.job_id)
        return rows[-1].time if rows and (job is None or job.final) else self.history.now

    def _mark_columns(self) -> columns.Columns:
        known = [(event, _KINDS[event.reason_code]) for event in self._own.events if event.reason_code in _KINDS]
        hues = dict(zip(_MARKERS, (*self.colours.jobs[2:5], self.colours.second, self.colours.text), strict=True))
        return {
            "time": [1000.0 * event.unix_seconds for event, _ in known],
            "nodes": [len(event.nodes) for event, _ in known],
            "kind": [kind for _, kind in known],
            "marker": [_MARKERS[kind] for _, kind in known],
            "colour": [hues[kind] for _, kind in known],
        }

    def _curve_columns(self) -> columns.Columns:
        points = columns.curve_columns(self._curve_fact())
        return points | {"marker": [_SOURCES.get(source, "circle") for source in points["source"]]}

    def _curve_fact(self) -> CurveFact | None:
        return self.history.curves.get(self.job_id) or self._own.curve

    def regions(self) -> Regions:
        """The parts that change."""
        rows = [
            Row(
                f"event-{event.sequence}",
                (
                    Cell(views.date_and_time(event.unix_seconds)),
                    views.state_cell(resources_pb2.JobState.Name(event.to_state).removeprefix("JOB_STATE_")),
                    Cell(str(len(event.nodes)), number=True),
                    Cell(_first_line(event)[:_MAX_LINE_LENGTH]),
                ),
            )
            for event in reversed(self._own.events[-_MAX_EVENTS:])
        ]
        lines = "\n".join(_log_line(*line) for line in self._own.log)
        log = str(escape(lines or self._own.log_error or ("nothing yet" if self._own.version else "asking …")))
        return Regions(
            {
                "facts": markup.facts(self._facts()),
                "log": log,
                "together": markup.links(self._together()),
                "actions": actions_html(job_actions(self.viewer.user, self.viewer.role, self._fact())),
            },
            {"journal": tuple(rows)},
        )

    def _fact(self) -> JobFact | None:
        own = job_intake.job_fact(self._own.job) if self._own.job is not None else None
        return self.history.jobs.get(self.job_id) or own

    def _together(self) -> list[tuple[str, str, bool]]:
        """The link to the comparison with the other jobs of its array, fleet or search, if it is of one."""
        fact = self._fact()
        group = "" if fact is None else fact.array or fact.fleet or search_of(fact.name)
        if fact is None or not group:
            return []
        link = self.selection.link("compare", job="", group=group, owner=fact.owner, metric="")
        return [(f"Compare with the others of {group}", link, False)]

    def _facts(self) -> list[tuple[str, str]]:
        fact = self._fact()
        if fact is None:
            return [("job", self._own.error or "choose one on the page Jobs")]
        progress = self.history.progress.get(self.job_id)
        samples = max(fact.samples, progress.samples if progress else 0)
        curve, idle = self._curve_fact(), len(self.history.nodes or ())
        remaining = eta(fact, curve, samples, idle, idle_quantiles(self.history.minutes[-60:]))
        rows = [
            ("name", fact.name),
            ("owner", fact.owner),
            ("state", f"{fact.state.lower()}: {self._reason(fact)}"),
            ("submitted", views.date_and_time(fact.submitted)),
            (
                "nodes",
                f"{len(fact.confirmed)} train, {len(fact.commanded)} commanded, {fact.wanted} wanted; "
                f"{fact.min_nodes} to {fact.max_nodes} permitted",
            ),
            *([("needs nodes of", fact.needs)] if fact.needs else []),
            (
                "samples",
                f"{samples:,}"
                + (f" of {fact.target_samples:,}" if fact.target_samples else "")
                + (f"; {_lost_in_words(fact, progress)}" if progress else ""),
            ),
            *(
                [("phase", f"{progress.phase}, for {markup.duration(progress.phase_s)}")]
                if progress and progress.phase
                else []
            ),
            *([("slow workers", progress.slow_workers)] if progress and progress.slow_workers else []),
            ("done in", views.eta_in_words(remaining)),
            ("changes", f"{fact.rescales} rescales, {fact.preemptions} preemptions, {fact.restarts} restarts"),
        ]
        if curve is not None:
            fit = f", filled by the fit {curve.fit}" if curve.fit else ""
            rows.append(
                (
                    "rescales cost",
                    f"{curve.up_s:.2f} s to grow, {curve.down_s:.2f} s to shrink; curve of "
                    f"{len(curve.points)} points{fit}",
                )
            )
        if self._own.job is not None and self._own.job.spec.command:
            rows.append(("command", " ".join(self._own.job.spec.command)[:_MAX_LINE_LENGTH]))
            rows += [(name, f"{value:g}") for name, value in sorted(self._own.job.metrics.items())]
        return rows

    def _reason(self, fact: JobFact) -> str:
        own = self._own.job.reason if self._own.job is not None else ""
        return own[:2000] or views.why(self.history, fact)

    async def ask(self) -> None:
        """Ask for the job, its journal and its log, when it has changed and every few seconds."""
        fact, now = self.history.jobs.get(self.job_id), self.shared.watcher.now()
        if not self.job_id or (fact is self._asked[0] and now - self._asked[1] < 3.0):
            return
        self._asked = (fact, now)
        metadata = self.viewer.metadata
        stub = job_manager(self.shared.watcher)
        try:
            answer = await stub.GetJob(
                job_manager_pb2.GetJobRequest(job_id=self.job_id), metadata=metadata, timeout=DEADLINE_SECONDS
            )
            events = await journal_of(self.shared.watcher, self.viewer, self.job_id, self._own.events)
        except grpc.aio.AioRpcError as error:
            self._take_answer(replace(self._own, error=no_answer_in_words(error)))
            return
        curve, (log, log_error) = await self._profile(), await self._log(stub)
        self._take_answer(Own(answer.job, events, curve, log, log_error, await self._logged()))

    def _take_answer(self, own: Own) -> None:
        if own != self._own:
            self._own = replace(own, version=self._own.version + 1)

    async def _profile(self) -> CurveFact | None:
        if self.job_id in self.history.curves:
            return None
        try:
            return await profile_of(self.shared.watcher, self.viewer, self.job_id)
        except grpc.aio.AioRpcError:
            return self._own.curve

    async def _logged(self) -> tuple[monitor_pb2.MetricHistory, ...]:
        try:
            return await metrics_of(self.shared.watcher, self.viewer, self.job_id, _METRIC_POINTS)
        except grpc.aio.AioRpcError:
            return self._own.metrics

    async def _log(self, stub: Any) -> tuple[tuple[tuple[str, int], ...], str]:
        request = job_manager_pb2.StreamLogsRequest(job_id=self.job_id, tail_lines=_LOG_LINES)
        lines: list[tuple[str, int]] = []
        try:
            async for part in stub.StreamLogs(request, metadata=self.viewer.metadata, timeout=DEADLINE_SECONDS):
                times = list(part.unix_ms) or [0] * len(part.lines)
                lines.extend((line[:_MAX_LINE_LENGTH], at) for line, at in zip(part.lines, times, strict=True))
        except grpc.aio.AioRpcError as error:
            return (), no_answer_in_words(error)
        return tuple(lines[-_LOG_LINES:]), ""


def _log_line(text: str, unix_ms: int) -> str:
    at = views.date_and_time(unix_ms / 1000) if 0 < unix_ms < _LATEST_MS else _NO_TIME
    return f"{at}  {text}"


def _first_line(event: job_manager_pb2.JobEvent) -> str:
    return event.reason.partition("\n")[0] or job_intake.reason_in_words(event.reason_code)


def _lost_in_words(fact: JobFact, progress: ProgressFact) -> str:
    if fact.samples_known:
        return f"{progress.samples_lost:,} lost by rollbacks"
    return "since its last start from disk; it reports no position: what was lost is not known"
