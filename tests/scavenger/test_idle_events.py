"""Watchers of the idle set: the present nodes first, then every event."""

from __future__ import annotations

import asyncio
from pathlib import Path

from malletrain.scavenger.idle_events import IdleEvents
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.sources.trace import StaticSource
from malletrain.scavenger.state_file import ScavengerStateFile
from malletrain.scavenger.telemetry.event_spans import EventSpans
from malletrain.scavenger.telemetry.metrics import ScavengerMetrics
from malletrain.v1 import scavenger_pb2
from tests.scavenger.machines import machine_of, recorder_of
from tests.support.clocks import ManualClock

START = 1e9


def events_of(names: list[str], folder: Path) -> IdleEvents:
    clock = ManualClock(START)
    events = IdleEvents(
        StaticSource(names, clock),
        machine_of(begun=START),
        recorder_of(folder),
        ScavengerStateFile(folder),
        clock,
        ScavengerMetrics(),
        EventSpans(),
    )
    events.observe(Observation(START, dict.fromkeys(names, START)))
    return events


async def test_what_happens_while_a_watcher_is_told_of_the_present_follows_as_an_event(tmp_path: Path) -> None:
    names = [f"n{number:04d}" for number in range(2000)]
    events = events_of(names, tmp_path)
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
