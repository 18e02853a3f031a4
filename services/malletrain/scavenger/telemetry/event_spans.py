"""Spans of events: from the scheduler's answer, or the call that takes nodes out, to the word to watchers."""

from __future__ import annotations

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.tracing.spans import NoTracer, Span, Tracer, names
from malletrain.scavenger.machine.idle_set import IdleEvent
from malletrain.scavenger.sources.base import SourceStatus

_ANSWER_LAG_SECONDS = 0.1
"""An observation that is later than an answer does not come of it, but e.g. of an agent that leaves."""
_MAX_LAG_SECONDS = 1.0
"""An observation that is further from now is of another clock, as that of a trace."""


class EventSpans:
    """Begins the span of each event, with which its trace begins."""

    def __init__(self) -> None:
        self._tracer: Tracer = NoTracer()

    def register(self, tracer: Tracer) -> None:
        """Trace from now on."""
        self._tracer = tracer

    def begin_observed(self, event: IdleEvent, time: float, status: SourceStatus, now: float) -> Span:
        """An event that follows from what a source says; begins when its newest query was sent, where it sends any.

        Args:
            time: When the source said so, in seconds since the epoch.
            status: How the queries of the source fare.
            now: The time, in seconds since the epoch.
        """
        if not self._tracer.enabled:
            return self._tracer.begin("")
        newest = min(status.queries, key=lambda query: query.age_seconds, default=None)
        if newest is None or now - newest.age_seconds < time - _ANSWER_LAG_SECONDS:
            begin = time if time <= now <= time + _MAX_LAG_SECONDS else now
            return self.begin_caused(event, "source", now, start=begin)
        answered = now - newest.age_seconds
        sent = answered - newest.seconds
        span = self.begin_caused(event, "source", now, start=sent)
        query = self._tracer.begin(
            "scavenger.query", span.context, start=sent, query=newest.query, source=newest.source
        )
        query.end(answered)
        return span

    def begin_caused(
        self, event: IdleEvent, cause: str, now: float, parent: TraceContext | None = None, start: float | None = None
    ) -> Span:
        """An event of another cause.

        Args:
            cause: What led to it, in one word.
            now: The time, in seconds since the epoch.
            parent: What it is part of; None: nothing.
            start: When it began, in seconds since the epoch; None: now.
        """
        if not self._tracer.enabled:
            return self._tracer.begin("")
        waited = max((now - node.idle_since for node in event.joined), default=0.0)
        return self._tracer.begin(
            "scavenger.event",
            parent,
            start=start,
            cause=cause,
            joined=len(event.joined),
            left=len(event.left),
            joined__nodes=names(node.name for node in event.joined),
            left__nodes=names(event.left),
            idle_seconds=waited,
        )

    def wanted_back(self, cause: str, nodes: list[str]) -> Span:
        """A call that takes nodes out, until they are confirmed to be free.

        Args:
            cause: The call, in one word.
            nodes: Names of nodes.
        """
        return self._tracer.begin(f"scavenger.{cause}", nodes=names(nodes), count=len(nodes))
