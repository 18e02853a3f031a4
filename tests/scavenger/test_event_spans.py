from __future__ import annotations

import pytest

from malletrain.scavenger.machine.idle_set import IdleEvent, IdleNode
from malletrain.scavenger.sources.base import QueryStatus, SourceStatus
from malletrain.scavenger.telemetry.event_spans import EventSpans
from tests.support.tracing import Traced, attributes_without_prefix, id_of, parent_of

EVENT = IdleEvent((IdleNode("n1", 900.0), IdleNode("n2", 990.0)), ("n3",))


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture
def spans(traced: Traced) -> EventSpans:
    spans = EventSpans()
    spans.register(traced.tracer)
    return spans


def query(age: float, seconds: float) -> SourceStatus:
    return SourceStatus((QueryStatus("slurm", "nodes", age, 1, 0, 0, seconds, ""),))


def begins(traced: Traced, name: str) -> float:
    start = traced.spans[name].start_time
    assert start is not None
    return start / 1e9


def test_an_event_begins_when_the_query_was_sent_whose_answer_it_is(traced: Traced, spans: EventSpans) -> None:
    spans.begin_observed(EVENT, 1000.0, query(age=0.25, seconds=0.5), now=1000.25).end()
    event, asked = traced.spans["scavenger.event"], traced.spans["scavenger.query"]
    assert begins(traced, "scavenger.event") == begins(traced, "scavenger.query") == 999.5
    assert asked.end_time == 1000 * 10**9
    assert parent_of(asked) == id_of(event)
    assert parent_of(event) == ""
    assert attributes_without_prefix(event) == {
        "cause": "source",
        "joined": 2,
        "left": 1,
        "joined.nodes": ("n1", "n2"),
        "left.nodes": ("n3",),
        "idle_seconds": 100.25,
    }


@pytest.mark.parametrize("age", [0.5, 30.0, float("inf")])
def test_an_answer_that_is_older_than_the_observation_is_not_what_led_to_it(
    traced: Traced, spans: EventSpans, age: float
) -> None:
    spans.begin_observed(EVENT, 1000.0, query(age, 0.5), now=1000.25).end()
    assert begins(traced, "scavenger.event") == 1000.0
    assert "scavenger.query" not in traced.spans


def test_a_time_that_is_far_from_now_is_not_taken_for_the_begin(traced: Traced, spans: EventSpans) -> None:
    spans.begin_observed(EVENT, 5.0, SourceStatus(()), now=1000.0).end()
    assert begins(traced, "scavenger.event") == 1000.0


def test_names_are_not_too_many(traced: Traced, spans: EventSpans) -> None:
    many = IdleEvent((), tuple(f"n{index:05}" for index in range(10_000)))
    spans.begin_caused(many, "drain", 1.0).end()
    found = attributes_without_prefix(traced.spans["scavenger.event"])
    assert found["left"] == 10_000
    assert len(found["left.nodes"]) == 16
