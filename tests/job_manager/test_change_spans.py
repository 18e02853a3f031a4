from __future__ import annotations

import time
from typing import Any

import pytest

from malletrain.common.trace_context import TraceContext
from malletrain.job_manager.machine.effects import Effect, ReleaseHosts, SetHosts, StartSupervisor
from malletrain.job_manager.machine.state_machine import TransactionResult
from malletrain.job_manager.machine.stimuli import Stimulus
from malletrain.job_manager.telemetry.change_spans import ChangeSpans
from malletrain.runtime.errors import StalePlanError
from malletrain.runtime.messages import timestamp
from malletrain.runtime.tracing.propagation import doing, present_context, to_message
from malletrain.v1 import supervisor_pb2
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec
from tests.support.tracing import Traced, attributes_without_prefix, id_of, links_of, parent_of

JOB = "j000001"


class TracedMachine(MachineHarness):
    """Tells spans of each change, as the engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.traced = Traced()
        self.spans = ChangeSpans()
        self.spans.register(self.traced.tracer, lambda: self.state.jobs)
        self.idle("a", "b", "c")
        self.submit(job_spec())

    def __call__(self, stimulus: Stimulus) -> TransactionResult:
        result = super().__call__(stimulus)
        self.spans.note_changes(result.changed)
        return result

    def take(self, **assignments: str) -> str:
        """Take a plan; identifier of the Allocator's span."""
        context = self.traced.context()
        with doing(context), self.spans.taking_plan(self.state.generation + 1) as taken:
            taken(self.plan(**assignments).rescaled)
        return context.span_id

    def lose(self, *nodes: str) -> TraceContext:
        context = self.traced.context()
        self.leave(*nodes)
        self.spans.nodes_left(frozenset(nodes), context)
        return context

    def report(self, context: TraceContext, **fields: Any) -> None:
        report = supervisor_pb2.CommandReport(
            trace_context=to_message(context),
            kind=supervisor_pb2.COMMAND_KIND_SET_HOSTS,
            begin_time=timestamp(time.time()),
            end_time=timestamp(time.time()),
            **fields,
        )
        self.spans.note_reports(JOB, [report, report])


@pytest.fixture
def machine() -> TracedMachine:
    return TracedMachine()


def command(machine: TracedMachine, effect: Effect) -> TraceContext | None:
    """Give a command; the context that goes with it."""
    with machine.spans.command(effect):
        return present_context()


def test_a_plan_changes_a_job_until_it_is_confirmed(machine: TracedMachine) -> None:
    plan = machine.take(j1="a b")
    found = machine.traced.spans
    assert parent_of(found["job_manager.take_plan"]) == plan
    assert attributes_without_prefix(found["job_manager.take_plan"])["accepted"] is True
    assert "job_manager.change_job" not in found
    context = command(machine, StartSupervisor(JOB, 1))
    assert context is not None
    machine.confirm()
    found = machine.traced.spans
    change = found["job_manager.change_job"]
    assert parent_of(change) == id_of(found["job_manager.take_plan"])
    assert parent_of(found["job_manager.start_supervisor"]) == id_of(change)
    assert id_of(found["job_manager.start_supervisor"]) == context.span_id
    assert attributes_without_prefix(change)["job.nodes"] == ("a", "b")
    assert command(machine, SetHosts(JOB, 1, 9, ("a", "b"))) is None, "belongs to no change"


def test_a_refused_plan_says_why_and_changes_nothing(machine: TracedMachine) -> None:
    with pytest.raises(StalePlanError):
        machine.take(j1="a z")
    span = machine.traced.spans["job_manager.take_plan"]
    assert attributes_without_prefix(span)["accepted"] is False
    assert "node z (for job j000001) is not idle" in str(span.status.description)
    assert command(machine, StartSupervisor(JOB, 1)) is None


def test_a_job_that_a_plan_leaves_as_it_is_has_no_span(machine: TracedMachine) -> None:
    machine.take(j1="a b")
    machine.confirm()
    machine.take(j1="a b")
    assert machine.traced.count("job_manager.change_job") == 1


def test_a_leave_lasts_until_the_node_is_free_and_the_scale_confirmed(machine: TracedMachine) -> None:
    machine.take(j1="a b")
    machine.confirm()
    event = machine.lose("b")
    machine.spans.nodes_left(frozenset({"b"}), machine.traced.tracer.begin("the call", event).context)
    assert command(machine, ReleaseHosts(JOB, 1, ("b",), 1.0)) is not None
    machine.confirm(occupied="a b")
    assert machine.traced.count("job_manager.change_job") == 1
    machine.released("b")
    change = machine.traced.spans["job_manager.change_job"]
    assert machine.traced.count("job_manager.change_job") == 2
    assert parent_of(change) == event.span_id
    assert attributes_without_prefix(change)["cause"] == "leave"
    assert links_of(change) == []


def test_a_later_cause_ends_the_earlier_change_and_links_to_it(machine: TracedMachine) -> None:
    machine.take(j1="a b")
    machine.lose("b")
    first = machine.traced.spans["job_manager.change_job"]
    assert attributes_without_prefix(first)["superseded"] is True
    machine.spans.close()
    assert links_of(machine.traced.spans["job_manager.change_job"]) == [id_of(first)]


def test_a_command_that_is_repeated_for_ever_has_not_as_many_spans(machine: TracedMachine) -> None:
    machine.take(j1="a b")
    for _ in range(200):
        command(machine, StartSupervisor(JOB, 1))
    assert machine.traced.count("job_manager.start_supervisor") == 64


def test_a_report_becomes_a_span_once_and_names_commanded_nodes_only(machine: TracedMachine) -> None:
    machine.take(j1="a b")
    context = command(machine, StartSupervisor(JOB, 1))
    assert context is not None
    now = timestamp(time.time() + 1e6)
    steps = [supervisor_pb2.HostStep(host=name, started=True, time=now) for name in ("a", "secret")]
    machine.report(context, done=True, steps=steps)
    machine.report(context, done=True, steps=steps)
    assert machine.traced.count("supervisor.set_hosts") == 1
    assert machine.traced.count("supervisor.start_workers") == 1
    span, step = machine.traced.spans["supervisor.set_hosts"], machine.traced.spans["supervisor.start_workers"]
    assert parent_of(span) == context.span_id
    assert attributes_without_prefix(step)["node"] == "a"
    assert step.end_time is not None
    assert step.end_time <= time.time_ns(), "a time that a supervisor invents stays within the command's"


def test_reports_of_commands_that_nobody_gave_are_ignored(machine: TracedMachine) -> None:
    machine.take(j1="a b")
    assert command(machine, StartSupervisor(JOB, 1)) is not None
    machine.report(machine.traced.context(), done=True)
    machine.spans.note_reports(JOB, [supervisor_pb2.CommandReport()] * 10_000)
    machine.spans.note_reports("j000099", [supervisor_pb2.CommandReport()])
    assert machine.traced.count("supervisor.set_hosts") == 0


def test_without_a_tracer_nothing_is_kept() -> None:
    machine = MachineHarness()
    machine.idle("a")
    machine.submit(job_spec())
    spans = ChangeSpans()
    with spans.taking_plan(1) as taken:
        taken(machine.plan(j1="a").rescaled)
    with spans.command(StartSupervisor(JOB, 1)):
        assert present_context() is None
    assert spans._changes == {}
