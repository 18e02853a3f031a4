"""Watchers of the idle set: the present nodes first, then every event."""

from __future__ import annotations

import asyncio

from malletrain.runtime.clock import ManualClock
from malletrain.scavenger.event_spans import EventSpans
from malletrain.scavenger.idle_events import IdleEvents
from malletrain.scavenger.idle_set import IdleSet
from malletrain.scavenger.messages import NodeDescriber
from malletrain.scavenger.metrics import ScavengerMetrics
from malletrain.scavenger.sources.base import Observation
from malletrain.scavenger.sources.static import StaticSource
from malletrain.scavenger.stays import StayEstimator
from malletrain.v1 import scavenger_pb2

START = 1e9


def events_of(names: list[str]) -> IdleEvents:
    clock = ManualClock(START)
    describer = NodeDescriber(StayEstimator(horizon_seconds=60))
    events = IdleEvents(StaticSource(names, clock), IdleSet(0), describer, clock, ScavengerMetrics(), EventSpans())
    events.observe(Observation(START, dict.fromkeys(names, START)))
    return events


async def test_what_happens_while_a_watcher_is_told_of_the_present_follows_as_an_event() -> None:
    names = [f"n{number:04d}" for number in range(2000)]
    events = events_of(names)
    watch = events.watch()
    first: asyncio.Task[scavenger_pb2.WatchNodesResponse] = asyncio.ensure_future(anext(watch))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not first.done(), "others have their turn while two thousand nodes are described"
    kept = dict.fromkeys(names[:-1], START) | {"new": START}
    events.observe(Observation(START, kept))
    snapshot = await first
    assert (snapshot.snapshot, snapshot.revision) == (True, 1)
    assert [node.name for node in snapshot.joined] == names
    event = await anext(watch)
    assert (event.revision, [node.name for node in event.joined], list(event.left)) == (2, ["new"], [names[-1]])
    await watch.aclose()
