"""The page Plan."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import grpc
import grpc.aio
from bokeh.models import ColumnDataSource

from malletrain.allocator.wire.messages import problem_from_proto
from malletrain.dashboard.figures import columns, plots
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.markup import Cell, ChoiceForm, Regions, Row, Section
from malletrain.dashboard.pages.page import Page, SharedData
from malletrain.dashboard.pages.plan_values import PlanValues, values_of
from malletrain.observer import intake
from malletrain.observer.facts import PlanFact, RequirementFact
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import allocator_pb2, allocator_pb2_grpc

_WITHOUT_SCALE = {
    allocator_pb2.SCALE_REASON_PINNED: "the end of its measuring, or a save that succeeds: its scale is pinned",
    allocator_pb2.SCALE_REASON_MAXIMUM: "nothing: it has the largest scale that it was submitted for",
    allocator_pb2.SCALE_REASON_CURVE_END: "a curve that is known beyond this scale",
}


def requirement_facts(explanation: allocator_pb2.PlanExplanation) -> tuple[RequirementFact, ...]:
    """What each job of a plan would have needed, and why it has its scale."""
    return tuple(RequirementFact(job.job_id, _needs(job), tuple(job.sentences)) for job in explanation.jobs)


def _needs(job: allocator_pb2.JobExplanation) -> str:
    if not job.HasField("more"):
        return _WITHOUT_SCALE.get(job.more_reason, "–")
    more = job.more
    match job.more_reason:
        case allocator_pb2.SCALE_REASON_POOL_TOO_SMALL:
            return f"{_nodes(more.nodes)} in its pool: that is its next permitted scale"
        case allocator_pb2.SCALE_REASON_GROUP_TOO_SMALL:
            return f"{_nodes(more.nodes)} that suit it in one group"
        case allocator_pb2.SCALE_REASON_POOL_LIMIT:
            return "a higher limit of the pool (max_nodes)"
        case allocator_pb2.SCALE_REASON_OWNER_LIMIT:
            return f"a higher limit of {job.owner}" if job.owner else "a higher limit of its owner"
        case allocator_pb2.SCALE_REASON_TIE:
            return f"anything better on {_nodes(more.nodes)}: it would be just as good, and ties change nothing"
    if more.needed_rate > 0:
        return f"{more.needed_rate:,.4g} samples/s on {_nodes(more.nodes)}; its curve says {more.rate:,.4g}"
    return f"more than any rate on {_nodes(more.nodes)}"


def _nodes(count: int) -> str:
    return f"{count} node" + ("" if count == 1 else "s")


_MAX_BARS = 30
_OTHERS = 50
_EXPLAIN_S = 20.0
_LASTING = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
"""Errors that asking again does not mend."""

_SECTIONS = (
    Section("facts", "plan", half=True),
    Section(
        "table",
        "plans",
        "Earlier plans",
        "Those that were made since the dashboard was started, newest first. The Allocator keeps more: ask by number.",
        ("plan", "made", "because", "changed", "outcome"),
        (3,),
        half=True,
    ),
    Section("choice", "choice"),
    Section(
        "table",
        "rows",
        "Who got what",
        "Worth of a node: by how much the objective (weighted samples within T_fwd, less what rescaling costs) "
        "differs at the job's next larger and next smaller permitted scale, per node.",
        ("job", "name", "before", "after", "change", "one more is worth", "one fewer costs"),
        (2, 3, 4, 5, 6),
    ),
    Section(
        "table",
        "needs",
        "Why not more, why not fewer",
        "The Allocator solves the plan's problem again with the job at another scale (malletrain explain).",
        ("job", "to get more it would have needed", "why it has what it has"),
    ),
    Section(
        "figure",
        "worth",
        "What a node is worth to each job",
        "A bar to the left says that rescaling costs more than it gains within T_fwd.",
    ),
)


class PlanPage(Page):
    """The newest plan, or an earlier one."""

    name = "plan"
    title = "Plan"
    sections = _SECTIONS

    @staticmethod
    def known_to(shared: SharedData, generation: int) -> PlanFact | None:
        """A plan that was heard of, or that the Allocator was asked for; generation 0: the newest."""
        plans = shared.watched.history.plans
        if not generation:
            return plans[-1] if plans else None
        heard = next((plan for plan in plans if plan.generation == generation), None)
        answer = shared.answer(("plan", generation)) if heard is None else None
        return answer if isinstance(answer, PlanFact) else heard

    @staticmethod
    def values_in(shared: SharedData, plan: PlanFact) -> PlanValues | None:
        """What nodes are worth in a plan; None where its problem can't be read."""

        def make() -> PlanValues | None:
            message = allocator_pb2.AllocationProblem.FromString(plan.problem)
            try:
                problem = problem_from_proto(message)
            except InvalidInputError:  # that of a later version, say
                return None
            return values_of(problem, {row.job_id: row.after for row in plan.rows})

        return shared.remembered(("plan values", plan.generation), make)

    def chosen_plan(self) -> PlanFact | None:
        """The plan that is shown."""
        return self.known_to(self.shared, self.selection.plan)

    def choice(self) -> ChoiceForm:
        """The form that asks for a plan by its number."""
        hidden = tuple(self.selection.arguments(plan=0).items())
        return ChoiceForm("plan", "Plan number", str(self.selection.plan or ""), "/plan", hidden)

    def figures(self) -> list[Any]:
        """Its figures."""
        self._drawn: PlanFact | None = None
        self._source = ColumnDataSource(data=self._columns())
        self._worth = plots.worth_figure(self._source, self._jobs(), self.colours)
        self._drawn = self.chosen_plan()
        return [self._worth]

    def _jobs(self) -> list[str]:
        plan = self.chosen_plan()
        return [row.job_id for row in plan.rows[:_MAX_BARS]] if plan is not None else []

    def _columns(self) -> columns.Columns:
        plan = self.chosen_plan()
        values = self.values_in(self.shared, plan) if plan is not None else None
        known = values.jobs[:_MAX_BARS] if values is not None else ()
        return {
            "job": [value.job_id for value in known],
            "one_more": [value.one_more or 0.0 for value in known],
            "one_fewer": [value.one_fewer or 0.0 for value in known],
            "more_row": [(value.job_id, 0.18) for value in known],
            "fewer_row": [(value.job_id, -0.18) for value in known],
        }

    def on_refreshed(self) -> None:
        """Draw another plan."""
        if self.chosen_plan() is not self._drawn:
            self._drawn = self.chosen_plan()
            self._worth.y_range.factors = plots.worth_rows(self._jobs())
            self._worth.height = plots.worth_height(len(self._jobs()))
            self._source.data = self._columns()

    def regions(self) -> Regions:
        """The parts that change."""
        plan = self.chosen_plan()
        if plan is None:
            texts = {"plan": markup.facts([("plan", self._missing())]), "choice": self._neighbours(None)}
            return Regions(texts, {"plans": self._others(), "rows": (), "needs": ()})
        names = {job.id: job.name for job in self.history.jobs.values()}
        values = self.values_in(self.shared, plan)
        rows = views.plan_rows(plan, values, names, self.colours, self.selection)
        return Regions(
            {"plan": markup.facts(views.plan_facts(plan, values)), "choice": self._neighbours(plan)},
            {"plans": self._others(), "rows": rows, "needs": self._needs(plan)},
        )

    def _missing(self) -> str:
        """Why there is no plan to show."""
        if not self.selection.plan:
            return "none yet: it takes a node or a job"
        return str(self.shared.answer(("plan", self.selection.plan)) or "asking the Allocator …")

    def _neighbours(self, plan: PlanFact | None) -> str:
        """Links to the plan before and the one after, and to the newest."""
        newest = self.history.plans[-1].generation if self.history.plans else 0
        number = plan.generation if plan is not None else self.selection.plan
        neighbours = []
        if number > 1:
            neighbours.append((f"← plan {number - 1}", self.selection.link("plan", plan=number - 1), False))
        if 0 < number < newest:
            neighbours.append((f"plan {number + 1} →", self.selection.link("plan", plan=number + 1), False))
        if self.selection.plan:
            neighbours.append(("the newest", self.selection.link("plan", plan=0), False))
        return markup.links(neighbours)

    async def ask(self) -> None:
        """Ask the Allocator for an earlier plan, and why jobs have what they have: once per plan for all viewers."""
        stub = allocator_pb2_grpc.AllocatorServiceStub(self.shared.watcher.channel("allocator"))
        if self.chosen_plan() is None:
            await self._ask_plan(stub)
        plan = self.chosen_plan()
        if plan is None or self.shared.answer(("needs", plan.generation)) is not None:
            return
        request = allocator_pb2.ExplainPlanRequest(generation=plan.generation)
        try:
            answer = await stub.ExplainPlan(request, metadata=self.viewer.metadata, timeout=_EXPLAIN_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in _LASTING:
                self.shared.keep_answer(("needs", plan.generation), error.details() or error.code().name)
            return
        self.shared.keep_answer(("needs", plan.generation), requirement_facts(answer.explanation))

    async def _ask_plan(self, stub: Any) -> None:
        key = ("plan", self.selection.plan)
        if not self.selection.plan or self.shared.answer(key) is not None:
            return
        request = allocator_pb2.GetPlanRequest(generation=self.selection.plan)
        try:
            answer = await stub.GetPlan(request, metadata=self.viewer.metadata, timeout=DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in _LASTING:
                self.shared.keep_answer(key, error.details() or error.code().name)
            return
        if answer.plan.generation == self.selection.plan:
            self.shared.keep_answer(key, intake.plan_fact(answer.plan))
        else:
            self.shared.keep_answer(key, "the Allocator is of an earlier version, which tells of the newest plan only")

    def own_key(self) -> Hashable:
        """Whether the plan is known and was explained by now."""
        plan = self.chosen_plan()
        if plan is None:
            return self.shared.answer(("plan", self.selection.plan)) is not None
        return plan.generation, self.shared.answer(("needs", plan.generation)) is not None

    def _needs(self, plan: PlanFact) -> tuple[Row, ...]:
        answer = self.shared.answer(("needs", plan.generation))
        if not isinstance(answer, tuple):
            return (Row("need-none", (Cell(answer or "asking the Allocator …"), Cell(""), Cell(""))),)
        return views.requirement_rows(answer, self.colours, self.selection)

    def _others(self) -> tuple[Row, ...]:
        rows = []
        for place, plan in enumerate(self.history.plans[::-1][:_OTHERS]):
            changed = sum(row.before != row.after for row in plan.rows)
            link = self.selection.link("plan", plan=plan.generation if place else 0)
            cells = (
                Cell(str(plan.generation), link=link),
                Cell(views.time_of_day(plan.time)),
                Cell(plan.trigger),
                Cell(f"{changed} job" + ("" if changed == 1 else "s"), number=True),
                Cell("applied" if plan.applied else "refused"),
            )
            rows.append(Row(f"other-{plan.generation}", cells, chosen=plan is self.chosen_plan()))
        return tuple(rows)
