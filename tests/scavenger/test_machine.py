"""What the Scavenger's machine announces, stores and excludes, and the recording of what led to a defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.operate.debug import read_recording
from malletrain.runtime.errors import InvariantError
from malletrain.runtime.kernel.documents import copy_state, from_document, to_document
from malletrain.runtime.kernel.recording import Moment, replay_recording, reproduces
from malletrain.scavenger.machine.drains import Drain, DrainSet
from malletrain.scavenger.machine.idle_set import IdleNode
from malletrain.scavenger.machine.machine import Effects, ScavengerMachine
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.machine.stimuli import (
    AnnounceEvent,
    ClockMoved,
    DrainsChanged,
    Due,
    ExcludeNodes,
    FailuresReported,
    NodeFailure,
    NodesObserved,
    NodesReclaimed,
    NoteQuarantine,
    QuarantineEnded,
    StaysRequested,
    StoreCooldowns,
    StoreQuarantine,
)
from tests.scavenger.machines import machine_of, recorder_of

IDLE = {"n1": 0.0, "n2": 0.0}


def observed(time: float, *names: str, ended: bool = False) -> NodesObserved:
    return NodesObserved(Observation(time, dict.fromkeys(names, 0.0), ended=ended))


def announced(effects: Effects) -> list[tuple[str, list[str], list[str]]]:
    """Cause, and who joins and leaves, of each event."""
    return [
        (effect.cause, [node.name for node in effect.event.joined], list(effect.event.left))
        for effect in effects
        if isinstance(effect, AnnounceEvent)
    ]


def observing(**fields: float) -> ScavengerMachine:
    machine = machine_of(**fields)
    machine.advance(observed(1.0, "n1", "n2"), Moment(1.0))
    return machine


def test_events_are_numbered_and_say_why_and_when() -> None:
    machine = machine_of(debounce_seconds=10.0)
    assert machine.advance(observed(4.0, "n1", "n2"), Moment(5.0)) == ()
    (event,) = machine.advance(Due(), Moment(10.0))
    assert isinstance(event, AnnounceEvent)
    assert (event.revision, event.cause, event.unix_seconds) == (1, "debounce", 10.0)
    (event,) = machine.advance(observed(11.0, "n1"), Moment(12.0))
    assert isinstance(event, AnnounceEvent)
    assert (event.revision, event.cause, event.unix_seconds) == (2, "source", 11.0)
    assert event.event.left == ("n2",)
    assert machine.event_time == 11.0


def test_the_end_of_the_source_is_told_once_although_no_node_joins_or_leaves() -> None:
    machine = observing()
    assert announced(machine.advance(observed(2.0, "n1", "n2", ended=True), Moment(2.0))) == [("source", [], [])]
    assert machine.advance(observed(3.0, "n1", "n2", ended=True), Moment(3.0)) == ()


def test_reclaimed_nodes_leave_before_that_is_stored_and_are_not_excluded_yet() -> None:
    machine = observing()
    effects = machine.advance(NodesReclaimed(("n1", "n9"), 60.0), Moment(2.0))
    assert announced(effects) == [("reclaim", [], ["n1"])]
    assert effects[1:] == (StoreCooldowns(),)
    assert announced(machine.advance(Due(), Moment(62.0))) == [("debounce", ["n1"], [])]


def test_drained_nodes_are_excluded_at_once() -> None:
    machine = observing()
    drains = DrainSet().drained(["n2"], Drain("a new disk", "ada", 2.0))
    effects = machine.advance(DrainsChanged(drains, "drain"), Moment(2.0))
    assert announced(effects) == [("drain", [], ["n2"])]
    assert effects[1:] == (ExcludeNodes(),)
    assert announced(machine.advance(DrainsChanged(DrainSet(), "resume"), Moment(3.0))) == [("resume", ["n2"], [])]


def test_failures_quarantine_nodes_until_an_operator_ends_it() -> None:
    machine = observing(failures=1.0)
    failure = NodeFailure("n1", "a broken GPU", "ada")
    effects = machine.advance(FailuresReported((failure,)), Moment(2.0))
    assert announced(effects) == [("quarantine", [], ["n1"])]
    assert [effect.failure for effect in effects if isinstance(effect, NoteQuarantine)] == [failure]
    assert effects[-3:] == (ExcludeNodes(), StoreQuarantine(), StoreCooldowns())
    assert machine.advance(QuarantineEnded(("n2",)), Moment(3.0)) == ()
    effects = machine.advance(QuarantineEnded(None), Moment(3.0))
    assert announced(effects) == [("resume", ["n1"], [])]
    assert effects[1:] == (ExcludeNodes(), StoreQuarantine(), StoreCooldowns())


def test_a_clock_that_was_set_ends_no_cooldown() -> None:
    machine = observing()
    machine.advance(NodesReclaimed(("n1",), 60.0), Moment(2.0))
    assert machine.advance(ClockMoved(3600.0), Moment(3602.0)) == (ExcludeNodes(), StoreQuarantine(), StoreCooldowns())
    assert machine.advance(Due(), Moment(3661.0)) == ()
    assert announced(machine.advance(Due(), Moment(3662.0))) == [("debounce", ["n1"], [])]


def test_stays_follow_the_fragments_that_have_ended_and_what_the_scheduler_says() -> None:
    machine = machine_of(horizon_seconds=1000.0)
    node = IdleNode("n1", 0.0)
    machine.advance(NodesObserved(Observation(1.0, IDLE, ends={"n1": 31.0})), Moment(1.0))
    assert machine.expected_stay(node, 11.0) == 20.0, "without a curve, until the end that is known"
    machine.advance(NodesObserved(Observation(50.0, {"n1": 0.0})), Moment(50.0))
    machine.advance(StaysRequested(), Moment(50.0))
    assert 0.0 < machine.expected_stay(node, 50.0) < 1000.0


def test_fragments_go_on_while_the_source_is_silent() -> None:
    machine = observing()
    machine.advance(NodesObserved(Observation(50.0, {}, stale=True)), Moment(50.0))
    machine.advance(observed(60.0, "n1"), Moment(60.0))
    assert machine.stays.current.fits == 1, "only n2 has ended"


def test_a_copy_and_a_document_go_on_as_the_machine_does() -> None:
    machine = observing(debounce_seconds=5.0, failures=1.0)
    machine.advance(Due(), Moment(6.0))
    machine.advance(NodesReclaimed(("n1",), 60.0), Moment(7.0))
    machine.advance(FailuresReported((NodeFailure("n2", "", ""),)), Moment(8.0))
    twin = copy_state(machine)
    read = from_document(ScavengerMachine, to_document(twin))
    for stimulus in (observed(70.0, "n1", "n2", "n3"), QuarantineEnded(None), observed(90.0, "n3")):
        effects = machine.advance(stimulus, Moment(90.0))
        assert twin.advance(stimulus, Moment(90.0)) == effects
        assert read.advance(stimulus, Moment(90.0)) == effects
    assert to_document(twin) == to_document(read) == to_document(machine)


def test_a_broken_invariant_is_written_and_replayed(tmp_path: Path) -> None:
    machine = machine_of()
    machine.idle.drains = DrainSet(Drain("", "ada", 0.0))
    machine.advance(observed(1.0, "n1"), Moment(1.0))
    document = to_document(machine)
    document["idle"]["_waiting"] = []
    machine = from_document(ScavengerMachine, document)
    recorder = recorder_of(tmp_path)
    with pytest.raises(InvariantError, match="neither count nor wait: n1"):
        recorder.advance(machine, DrainsChanged(DrainSet(), "resume"), Moment(2.0))
    recording = read_recording(next((tmp_path / "debug").glob("scavenger-stimuli-*.json")))
    assert reproduces(recording, replay_recording(recording))
