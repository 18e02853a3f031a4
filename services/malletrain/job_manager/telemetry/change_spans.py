"""Spans of what JobManager does: plans that it takes, changes of jobs until they are confirmed, and commands.

A change begins with what calls for it, a plan or a leave, and ends when the job trains on what it was given and nothing
of it is left elsewhere. Commands may come long after the cause, and again: they belong to the change of their job.
Supervisors send no spans, and know no collector: theirs are made from what they report.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from malletrain.common.gpus import node_of
from malletrain.common.trace_context import TraceContext
from malletrain.job_manager.machine.effects import Effect, ReleaseHosts, SetHosts, StartSupervisor, StopSupervisor
from malletrain.job_manager.machine.jobs import Job
from malletrain.model.job_state import JobState
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.tracing.propagation import doing, from_message, present_context
from malletrain.runtime.tracing.spans import NoTracer, Span, Tracer, names
from malletrain.v1 import supervisor_pb2

_MAX_COMMANDS = 64
"""Of one change; a command that fails is repeated, for ever if need be."""
_NAMES = {
    StartSupervisor: "job_manager.start_supervisor",
    SetHosts: "job_manager.set_hosts",
    ReleaseHosts: "job_manager.release_hosts",
    StopSupervisor: "job_manager.stop_supervisor",
}


_MAX_EXPECTED = 32
"""Commands of one job whose report is waited for."""
_MAX_REPORTS, _MAX_STEPS = 64, 256
_KINDS = {
    supervisor_pb2.COMMAND_KIND_SET_HOSTS: "supervisor.set_hosts",
    supervisor_pb2.COMMAND_KIND_RELEASE_HOSTS: "supervisor.release_hosts",
    supervisor_pb2.COMMAND_KIND_STOP: "supervisor.stop",
}


@dataclass
class _Change:
    """A change of a job that is not confirmed yet."""

    cause: str
    trace_id: str
    span: Span
    commands: int = 0


class ChangeSpans:
    """The changes that are under way, one for each job at most."""

    def __init__(self) -> None:
        self._tracer: Tracer = NoTracer()
        self._supervisors = SupervisorSpans(self._tracer)
        self._jobs: Callable[[], Mapping[str, Job]] = dict
        self._changes: dict[str, _Change] = {}

    def register(self, tracer: Tracer, jobs: Callable[[], Mapping[str, Job]]) -> None:
        """Trace from now on.

        Args:
            tracer: Makes spans.
            jobs: The jobs that are not in a final state, by identifier.
        """
        self._tracer = tracer
        self._supervisors = SupervisorSpans(tracer.of("supervisor"))
        self._jobs = jobs

    @contextmanager
    def taking_plan(self, generation: int) -> Iterator[Callable[[Iterable[str]], None]]:
        """A plan is taken, or refused if the block raises. Call what it gives with the jobs that the plan changes."""
        span = self._tracer.begin("job_manager.take_plan", present_context(), plan__generation=generation)

        def note_rescaled(job_ids: Iterable[str]) -> None:
            span.note(accepted=True, jobs=names(job_ids))
            for job_id in job_ids:
                self._begin(job_id, "plan", span.context)

        refusal = ""
        try:
            yield note_rescaled
        except Exception as error:
            refusal = str(error)
            span.note(accepted=False, refusal=refusal)
            raise
        finally:
            span.end(error=refusal)

    def nodes_left(self, nodes: frozenset[str], context: TraceContext | None) -> None:
        """Nodes have been taken from their jobs.

        Args:
            nodes: Their names.
            context: The event, or the call.
        """
        if context is None or not self._tracer.enabled:
            return
        for job in self._jobs().values():
            if any(release.left and node_of(release.node) in nodes for release in job.releases):
                self._begin(job.id, "leave", context)

    def note_changes(self, jobs: Iterable[Job]) -> None:
        """Jobs have changed: some changes may have come to their end."""
        if not self._changes:
            return
        for job in jobs:
            change = self._changes.get(job.id)
            if change is not None and _is_settled(job):
                change.span.note(job__state=job.state.value, confirmed=job.state is JobState.RUNNING)
                change.span.note(nodes=len(job.confirmed), job__nodes=names(job.confirmed))
                change.span.end()
                del self._changes[job.id]
            if job.state.final:
                self._supervisors.forget(job.id)

    @contextmanager
    def command(self, effect: Effect) -> Iterator[None]:
        """A command is given, and answered when the block is left; `present_context` tells what goes with it."""
        change = self._changes.get(effect.job_id)
        if change is None or change.commands >= _MAX_COMMANDS:
            yield
            return
        change.commands += 1
        nodes = self._nodes(effect)
        span = self._tracer.begin(
            _NAMES[type(effect)],
            change.span.context,
            job__id=effect.job_id,
            incarnation=effect.incarnation,
            nodes=names(nodes),
        )
        if span.context is not None:
            self._supervisors.expect(effect.job_id, span.context, nodes)
        error = "not answered"
        try:
            with doing(span.context):
                yield
            error = ""
        finally:
            span.end(error=error)

    def note_reports(self, job_id: str, reports: Iterable[supervisor_pb2.CommandReport]) -> None:
        """A job's supervisor tells how it carried out commands."""
        self._supervisors.add_reports(job_id, reports)

    def close(self) -> None:
        """End what is under way: nobody will see its end."""
        for change in self._changes.values():
            change.span.end(error="JobManager ends")
        self._changes.clear()

    def _nodes(self, effect: Effect) -> tuple[str, ...]:
        if isinstance(effect, SetHosts | ReleaseHosts):
            return effect.nodes
        job = self._jobs().get(effect.job_id)
        if job is None:
            return ()
        return job.commanded if isinstance(effect, StartSupervisor) else job.held

    def _begin(self, job_id: str, cause: str, context: TraceContext | None) -> None:
        job = self._jobs().get(job_id)
        if context is None or job is None or _is_settled(job):
            return
        earlier = self._changes.get(job_id)
        if cause == "leave" and earlier is not None and (earlier.cause, earlier.trace_id) == (cause, context.trace_id):
            return  # the event, and the call that asks for its confirmation
        links = [earlier.span.context] if earlier is not None and earlier.span.context is not None else []
        span = self._tracer.begin("job_manager.change_job", context, links, job__id=job_id, cause=cause)
        span.note(wanted__nodes=names(job.wanted), commanded__nodes=names(job.commanded))
        if earlier is not None:
            earlier.span.note(superseded=True)
            earlier.span.end()
        self._changes[job_id] = _Change(cause, context.trace_id, span)


def _is_settled(job: Job) -> bool:
    """Whether a job is where it shall be: in training on what it was given, or without nodes."""
    if job.state.final:
        return True
    if not job.supervised:
        return not job.wanted
    wanted = set(job.wanted)
    return job.state is JobState.RUNNING and all(
        set(nodes) == wanted for nodes in (job.commanded, job.confirmed, job.held)
    )


@dataclass(frozen=True)
class _Expected:
    """A command that was given and is not reported yet."""

    context: TraceContext
    nodes: frozenset[str]
    since: float


class SupervisorSpans:
    """Takes each report once, and only those of commands that were given: a supervisor may be in its owner's hands."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.time) -> None:
        """
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
        while len(expected) > _MAX_EXPECTED:
            expected.popitem(last=False)

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        self._expected.pop(job_id, None)

    def add_reports(self, job_id: str, reports: Iterable[supervisor_pb2.CommandReport]) -> None:
        """Make spans of reports that are new."""
        expected = self._expected.get(job_id)
        if not expected:
            return
        for report in list(reports)[:_MAX_REPORTS]:
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
        for step in list(report.steps)[:_MAX_STEPS]:
            if step.host in command.nodes:
                name = "supervisor.start_workers" if step.started else "supervisor.end_workers"
                part = self._tracer.begin(name, span.context, start=begin, job__id=job_id, node=step.host)
                part.end(within(unix_seconds(step.time), begin))
        span.end(within(unix_seconds(report.end_time), begin))
