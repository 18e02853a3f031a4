"""Spans of supervisors, made from what they report: they themselves send nothing, and know no collector."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.tracing.propagation import from_message
from malletrain.runtime.tracing.spans import Tracer
from malletrain.v1 import supervisor_pb2

_MOST_EXPECTED = 32
"""Commands of one job whose report is waited for."""
_MOST_REPORTS, _MOST_STEPS = 64, 256
_KINDS = {
    supervisor_pb2.COMMAND_KIND_SET_HOSTS: "supervisor.set_hosts",
    supervisor_pb2.COMMAND_KIND_RELEASE_HOSTS: "supervisor.release_hosts",
    supervisor_pb2.COMMAND_KIND_STOP: "supervisor.stop",
}


@dataclass(frozen=True)
class _Expected:
    """A command that was given."""

    context: TraceContext
    nodes: frozenset[str]
    since: float


class SupervisorSpans:
    """Takes each report once, and only those of commands that were given: a supervisor may be in its owner's hands."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.time) -> None:
        """Expect nothing yet.

        Args:
            tracer: Makes the supervisors' spans.
            clock: Seconds since the epoch.
        """
        self._tracer = tracer
        self._clock = clock
        self._expected: dict[str, OrderedDict[TraceContext, _Expected]] = {}

    def expect(self, job_id: str, context: TraceContext, nodes: Iterable[str]) -> None:
        """A command is given to a job's supervisor.

        Args:
            job_id: The job.
            context: What goes with the command.
            nodes: Nodes that the report may name.
        """
        expected = self._expected.setdefault(job_id, OrderedDict())
        expected[context] = _Expected(context, frozenset(nodes), self._clock())
        while len(expected) > _MOST_EXPECTED:
            expected.popitem(last=False)

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        self._expected.pop(job_id, None)

    def reported(self, job_id: str, reports: Iterable[supervisor_pb2.CommandReport]) -> None:
        """Make spans of reports that are new."""
        expected = self._expected.get(job_id)
        if not expected:
            return
        for report in list(reports)[:_MOST_REPORTS]:
            context = from_message(report.trace_context)
            command = expected.pop(context, None) if context is not None else None
            if command is not None and report.kind in _KINDS:
                self._make(job_id, command, report)

    def _make(self, job_id: str, command: _Expected, report: supervisor_pb2.CommandReport) -> None:
        now = self._clock()

        def within(seconds: float, earliest: float = command.since) -> float:
            return min(max(seconds, earliest), now)

        begin = within(unix_seconds(report.begin_time))
        span = self._tracer.begin(
            _KINDS[report.kind], command.context, start=begin, job__id=job_id, confirmed=report.done
        )
        for step in list(report.steps)[:_MOST_STEPS]:
            if step.host in command.nodes:
                name = "supervisor.start_workers" if step.started else "supervisor.end_workers"
                part = self._tracer.begin(name, span.context, start=begin, job__id=job_id, node=step.host)
                part.end(within(unix_seconds(step.time), begin))
        span.end(within(unix_seconds(report.end_time), begin))
