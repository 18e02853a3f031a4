"""Spans of plans: from the first event that a plan is made for to JobManager's answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.common.trace_context import TraceContext
from malletrain.runtime.tracing.propagation import from_message
from malletrain.runtime.tracing.spans import NoTracer, Span, Tracer
from malletrain.v1 import allocator_pb2, scavenger_pb2

_MAX_EVENTS = 64


class PlanSpan:
    """The span of one plan."""

    def __init__(self, tracer: Tracer, span: Span, events: dict[TraceContext, float]) -> None:
        """Go on with a span that has begun.

        Args:
            tracer: Makes its parts.
            events: Those for which no plan has been applied; those of this plan are taken out when it is.
        """
        self._tracer = tracer
        self._span = span
        self._events = events
        self._own = tuple(events)

    @property
    def context(self) -> TraceContext | None:
        """The identifiers by which other spans refer to this plan's."""
        return self._span.context

    @contextmanager
    def step(self, name: str) -> Iterator[TraceContext | None]:
        """A part of it, which lasts until the block is left."""
        span = self._tracer.begin(f"allocator.{name}", self._span.context)
        try:
            yield span.context
        finally:
            span.end()

    def note_solution(self, problem: AllocationProblem, allocation: Allocation) -> None:
        """Note the problem and its answer."""
        self._span.note(
            jobs=len(problem.jobs),
            nodes=len(problem.nodes),
            objective=allocation.objective,
            solver=allocation.solver,
            status=allocation.status,
            solve_seconds=allocation.solve_seconds,
        )

    def note_outcome(self, plan: allocator_pb2.Plan) -> None:
        """Record JobManager's answer to the plan."""
        self._span.note(plan__generation=plan.generation, applied=plan.applied, refusal=plan.refusal)
        if plan.applied:
            for context in self._own:
                self._events.pop(context, None)


class PlanSpans:
    """Knows the events for which no plan has been applied yet."""

    def __init__(self) -> None:
        self._tracer: Tracer = NoTracer()
        self._events: dict[TraceContext, float] = {}

    def register(self, tracer: Tracer) -> None:
        """Trace from now on."""
        self._tracer = tracer

    def note_event(self, message: scavenger_pb2.WatchNodesResponse, now: float) -> None:
        """An event has come; of too many, the later ones are left out.

        Args:
            message: The event.
            now: The time, in seconds since the epoch.
        """
        if not self._tracer.enabled or len(self._events) >= _MAX_EVENTS:
            return
        context = from_message(message.trace_context)
        if context is not None:
            self._events.setdefault(context, now)

    def forget_events(self) -> None:
        """Drop the events that have come: they need no plan."""
        self._events.clear()

    @contextmanager
    def plan(self, reason: str) -> Iterator[PlanSpan]:
        """The span of a plan that is made now: part of the first event's trace, and linked to the others.

        Args:
            reason: Why it is made.
        """
        contexts = list(self._events)
        first, others = (contexts[0], contexts[1:]) if contexts else (None, [])
        start = self._events[first] if first else None
        span = self._tracer.begin("allocator.plan", first, others, start, trigger=reason, events=len(contexts))
        if start is not None:
            self._tracer.begin("allocator.coalesce", span.context, start=start).end()
        error = "not finished"
        try:
            yield PlanSpan(self._tracer, span, self._events)
            error = ""
        finally:
            span.end(error=error)
