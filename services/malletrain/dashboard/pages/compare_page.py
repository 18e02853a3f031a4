"""The page Compare: what the jobs of an array or a search have logged, in one figure, as the viewer may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import grpc.aio
from bokeh.models import ColumnDataSource

from malletrain.dashboard.figures.columns import Columns
from malletrain.dashboard.figures.plots import Course, comparison_figure, course_lines
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.job_answers import job_manager, metrics_of, no_answer_in_words
from malletrain.dashboard.pages.markup import STATES, Cell, ChoiceForm, Regions, Row, Section
from malletrain.dashboard.pages.older_jobs import MAX_JOBS, OlderAnswer, members_of
from malletrain.dashboard.pages.page import Page, SharedData
from malletrain.dashboard.pages.selection import Selection
from malletrain.observer.job_facts import JobFact
from malletrain.observer.job_groups import JobGroup, groups_of
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.v1 import job_manager_pb2, monitor_pb2

MAX_GROUPS = 20
_POINTS = 256
_ASK_EVERY_S = 5.0
_AT_ONCE = 8
_USUAL = ("loss", "train_loss", "val_loss")
_CHOICE_NOTE = "Of any age that JobManager keeps: j000012 j000019, a000012, resnet, or several names with commas."
_SECTIONS = (
    Section("choice", "choice-note"),
    Section("text", "notes"),
    Section("links", "groups", "Jobs that belong together", "Arrays, fleets, searches, and jobs of one name."),
    Section("links", "metrics", "Metric"),
    Section(
        "figure",
        "compare",
        "By step",
        "A line for each job, in the colour that it has on all pages. Users see what their own jobs have logged, and "
        "operators all.",
    ),
    Section(
        "table",
        "compared",
        "Jobs",
        "The last value, and the least and the most that there were.",
        ("job", "name", "parameters", "state", "step", "last", "least", "most"),
        (4, 5, 6, 7),
        states=STATES,
    ),
)


@dataclass(frozen=True)
class LoggedByJob:
    """What was answered of one job.

    Attributes:
        parameters: By which values it differs from the others of its array, in words.
        metrics: Names of all that it has logged.
        history: What it has logged of the chosen metric; None: nothing.
        final: Whether it had ended before.
        found: Whether the services know it; those that they have forgotten are left out.
    """

    parameters: str = ""
    metrics: frozenset[str] = frozenset()
    history: monitor_pb2.MetricHistory | None = field(default=None, compare=False)
    final: bool = False
    exists: bool = True


class ComparePage(Page):
    """Several jobs by one metric."""

    name = "compare"
    title = "Compare"
    sections = _SECTIONS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.selection.group:
            self.title = f"Compare {self.selection.group}"
        self._known: dict[str, LoggedByJob] = {}
        self._older: OlderAnswer | None = None
        self._asking = False
        self._asked = 0.0
        self._error = ""
        self._version = 0
        self._drawn = -1

    def own_key(self) -> Hashable:
        """The answers are this viewer's alone."""
        return (id(self), self._version)

    @property
    def metric(self) -> str:
        """What the jobs are compared by; empty: not known yet."""
        return self.selection.metric or usual_metric(self._metrics())

    def choice(self) -> ChoiceForm:
        """The form that leads to jobs of any age."""
        hidden = tuple(self.selection.arguments(group="", owner="", metric="").items())
        label = "Identifiers, an array, a search or a name"
        return ChoiceForm("group", label, self.selection.group, "/compare", hidden, number=False)

    def figures(self) -> list[Any]:
        """Its figure."""
        self._source = ColumnDataSource(data=course_lines((), self.colours))
        self._plot = comparison_figure(self._source, self.metric)
        return [self._plot]

    def on_refreshed(self) -> None:
        """Draw what was answered."""
        if self._version != self._drawn:
            self._drawn = self._version
            self._source.data = course_lines(self._courses(), self.colours)
            if self._plot.yaxis[0].axis_label != self.metric:
                self._plot.yaxis[0].axis_label = self.metric

    def regions(self) -> Regions:
        """The parts that change."""
        groups = groups_of(self.history.jobs.values(), self.viewer.user)[:MAX_GROUPS]
        metrics = [(name, self.selection.link("compare", metric=name), name == self.metric) for name in self._metrics()]
        rows = tuple(self._row(job) for job in reversed(self._members()))
        return Regions(
            {
                "choice-note": _CHOICE_NOTE,
                "notes": markup.paragraphs(self._notes()),
                "groups": markup.links(self._link(group) for group in groups),
                "metrics": markup.links(metrics),
            },
            {"compared": rows},
        )

    def _link(self, group: JobGroup) -> tuple[str, str, bool]:
        """A group in words, the link to it, and whether it is the chosen one."""
        called = group.called if group.called == group.name else f"{group.called} {group.name}"
        owner = "" if group.owner == self.viewer.user else f" of {group.owner}"
        link = self.selection.link("compare", group=group.called, owner=group.owner, metric="")
        chosen = (self.selection.group, self.selection.owner or self.viewer.user)
        return f"{called}{owner} ({group.count})", link, (group.called, group.owner) == chosen

    def _notes(self) -> list[str]:
        if not self.selection.group:
            return ["Choose an array, a search or a name. malletrain submit --array 'lr=0.1,0.01' submits an array."]
        if self._error:
            return [f"{self._error}."]
        members = self._members()
        if self._older is None or any(job.id not in self._known for job in members):
            return ["asking …"]
        notes = []
        if not members:
            notes.append(f"No job of {self.selection.group} is kept.")
        elif not self._metrics():
            notes.append(
                "None of them has logged a metric that you may see; log_metrics({'loss': value}, step) logs one."
            )
        elif len(members) == MAX_JOBS:
            notes.append(f"The newest {MAX_JOBS} are shown; there may be more.")
        if not self._older.whole:
            notes.append(
                "There are too many newer jobs to look at them all: older ones are found by their identifiers."
            )
        return notes

    def _metrics(self) -> list[str]:
        return sorted({name for known in self._known.values() for name in known.metrics})

    def _members(self) -> list[JobFact]:
        """The newest jobs of the group, oldest first, but for those that the services have forgotten."""
        jobs = self._all_members()
        return [job for job in jobs if (known := self._known.get(job.id)) is None or known.exists]

    def _all_members(self) -> list[JobFact]:
        return members_of(
            self.history, self.selection, self.viewer.user, self._older.jobs if self._older is not None else ()
        )

    def _courses(self) -> list[Course]:
        courses = []
        for job in self._members():
            known = self._known.get(job.id)
            if known is not None and known.history is not None:
                points = known.history.points
                label = known.parameters or job.name
                courses.append(Course(job.id, label, [each.step for each in points], [each.value for each in points]))
        return courses

    def _row(self, job: JobFact) -> Row:
        known = self._known.get(job.id, LoggedByJob())
        points = known.history.points if known.history is not None else ()
        dash = self.colours.dash_of_job(job.id)
        figures = (
            (
                f"{points[-1].step:,}",
                f"{points[-1].value:g}",
                f"{min(each.least for each in points):g}",
                f"{max(each.most for each in points):g}",
            )
            if points
            else ("–",) * 4
        )
        cells = (
            Cell(job.id, link=self.selection.link("job", job=job.id), colour=self.colours.of_job(job.id), hint=dash),
            Cell(job.name),
            Cell(known.parameters),
            views.state_cell(job.state),
            *markup.number_cells(*figures),
        )
        return Row(f"compared-{job.id}", cells)

    async def ask(self) -> None:
        """Ask for what the jobs have logged: of those that have ended once, of the others every few seconds."""
        now = self.shared.watcher.now()
        if not self.selection.group or now - self._asked < _ASK_EVERY_S:
            return
        self._asked = now
        if self._asking:  # a search may take longer
            return
        self._asking = True
        before, older_before, error_before = dict(self._known), self._older, self._error
        try:
            self._older = await self.shared.older.ask(self.viewer, self.selection)
            due = await self._ask_jobs()
            self._error = ""
        except grpc.aio.AioRpcError as error:
            due = False
            self._error = no_answer_in_words(error)
        finally:
            self._asking = False
        if due or self._known != before or self._older != older_before or self._error != error_before:
            self._version += 1

    async def _ask_jobs(self) -> bool:
        """Ask for what those have logged of which not all is known, and say whether there were any."""
        due = [job for job in self._all_members() if (known := self._known.get(job.id)) is None or not known.final]
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(job: JobFact, ask: Callable[[JobFact], Awaitable[LoggedByJob]]) -> tuple[str, LoggedByJob]:
            async with places:
                try:
                    return job.id, await ask(job)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise
                    return job.id, LoggedByJob(final=job.final, exists=False)

        self._known |= dict(await asyncio.gather(*(one(job, self._names_of) for job in due)))
        self._known |= dict(await asyncio.gather(*(one(job, self._with_history) for job in due)))
        return bool(due)

    async def _names_of(self, job: JobFact) -> LoggedByJob:
        known = self._known.get(job.id)
        parameters = known.parameters if known is not None and known.exists else await self._parameters(job)
        newest = await metrics_of(self.shared.watcher, self.viewer, job.id, 2)
        names = frozenset(history.name for history in newest if history.points)
        return LoggedByJob(parameters, names, known.history if known is not None else None)

    async def _with_history(self, job: JobFact) -> LoggedByJob:
        known = self._known[job.id]
        if not known.exists or self.metric not in known.metrics:
            return replace(known, final=job.final)
        histories = await metrics_of(self.shared.watcher, self.viewer, job.id, _POINTS, [self.metric])
        return replace(
            known, history=histories[0] if histories and histories[0].points else known.history, final=job.final
        )

    async def _parameters(self, job: JobFact) -> str:
        request = job_manager_pb2.GetJobRequest(job_id=job.id)
        answer = await job_manager(self.shared.watcher).GetJob(
            request, metadata=self.viewer.metadata, timeout=DEADLINE_SECONDS
        )
        return " ".join(f"{name}={value}" for name, value in sorted(answer.job.spec.array_parameters.items()))


async def compared_columns(shared: SharedData, viewer: Viewer, selection: Selection) -> Columns:
    """All that is kept of what the jobs of a group have logged of the chosen metric; of all metrics if none is chosen.

    Raises:
        grpc.aio.AioRpcError: a service refuses, or does not answer.
    """
    names = [selection.metric] if selection.metric else []
    rows: dict[str, list[Any]] = {name: [] for name in ("job", "metric", "unix_s", "step", "value", "least", "most")}
    older = await shared.older.ask(viewer, selection)
    for job in members_of(shared.watched.history, selection, viewer.user, older.jobs):
        for history in await metrics_of(shared.watcher, viewer, job.id, 0, names):
            for point in history.points:
                row = (job.id, history.name, point.unix_seconds, point.step, point.value, point.least, point.most)
                for column, value in zip(rows.values(), row, strict=True):
                    column.append(value)
    return rows


def usual_metric(names: Collection[str]) -> str:
    """What jobs are compared by where nothing is chosen; empty: nothing was logged."""
    return next((name for name in _USUAL if name in names), min(names, default=""))
