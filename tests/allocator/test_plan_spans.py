from __future__ import annotations

import pytest

from malletrain.allocator.problem.allocation_problem import Allocation, AllocationProblem
from malletrain.allocator.telemetry.plan_spans import PlanSpans
from malletrain.runtime.tracing.propagation import to_message
from malletrain.v1 import allocator_pb2, resources_pb2, scavenger_pb2
from tests.support.tracing import Traced, attributes_without_prefix, id_of, links_of, parent_of


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
def spans(traced: Traced) -> PlanSpans:
    spans = PlanSpans()
    spans.register(traced.tracer)
    return spans


def event(traced: Traced, spans: PlanSpans, now: float = 100.0) -> str:
    """An event comes; identifier of its span."""
    context = traced.context()
    spans.note_event(scavenger_pb2.WatchNodesResponse(trace_context=to_message(context)), now)
    return context.span_id


def plan(spans: PlanSpans, *, applied: bool = True) -> None:
    with spans.plan("because") as span:
        span.note_outcome(allocator_pb2.Plan(generation=1, applied=applied, refusal="" if applied else "stale"))


def test_a_plan_is_part_of_its_first_event_and_linked_to_the_others(traced: Traced, spans: PlanSpans) -> None:
    first, second, third = (event(traced, spans, now) for now in (100.0, 101.0, 102.0))
    plan(spans)
    span = traced.spans["allocator.plan"]
    assert parent_of(span) == first
    assert links_of(span) == [second, third]
    assert span.start_time == 100 * 10**9
    assert parent_of(traced.spans["allocator.coalesce"]) == id_of(span)


def test_a_refused_plan_leaves_its_events_to_the_next_and_an_applied_one_does_not(
    traced: Traced, spans: PlanSpans
) -> None:
    first = event(traced, spans)
    plan(spans, applied=False)
    second = event(traced, spans)
    plan(spans)
    assert parent_of(traced.spans["allocator.plan"]) == first
    assert links_of(traced.spans["allocator.plan"]) == [second]
    plan(spans)
    assert parent_of(traced.spans["allocator.plan"]) == ""
    assert traced.count("allocator.plan") == 3


def test_an_event_that_comes_while_a_plan_is_made_is_for_the_next(traced: Traced, spans: PlanSpans) -> None:
    event(traced, spans)
    with spans.plan("because") as span:
        late = event(traced, spans)
        span.note_outcome(allocator_pb2.Plan(applied=True))
    plan(spans)
    assert parent_of(traced.spans["allocator.plan"]) == late


def test_events_that_call_for_no_plan_are_forgotten(traced: Traced, spans: PlanSpans) -> None:
    event(traced, spans)
    spans.forget_events()
    plan(spans)
    assert parent_of(traced.spans["allocator.plan"]) == ""


def test_not_too_many_events_are_kept(traced: Traced, spans: PlanSpans) -> None:
    first, *_ = [event(traced, spans) for _ in range(500)]
    plan(spans)
    assert parent_of(traced.spans["allocator.plan"]) == first
    assert len(links_of(traced.spans["allocator.plan"])) == 63


def test_a_context_that_makes_no_sense_is_ignored(traced: Traced, spans: PlanSpans) -> None:
    wrong = resources_pb2.TraceContext(traceparent="nonsense")
    spans.note_event(scavenger_pb2.WatchNodesResponse(trace_context=wrong), 1.0)
    plan(spans)
    assert parent_of(traced.spans["allocator.plan"]) == ""


def test_the_solution_is_described_by_figures(traced: Traced, spans: PlanSpans) -> None:
    with spans.plan("because") as span:
        span.note_solution(AllocationProblem(("a", "b"), 120.0, ()), Allocation(7.5, "OPTIMAL", "dp", 0.25, ()))
    found = attributes_without_prefix(traced.spans["allocator.plan"])
    assert found == {
        "trigger": "because",
        "events": 0,
        "jobs": 0,
        "nodes": 2,
        "objective": 7.5,
        "solver": "dp",
        "status": "OPTIMAL",
        "solve_seconds": 0.25,
    }


def test_a_plan_that_fails_is_an_error(traced: Traced, spans: PlanSpans) -> None:
    with pytest.raises(RuntimeError), spans.plan("because"):
        raise RuntimeError
    assert traced.spans["allocator.plan"].status.description == "not finished"
