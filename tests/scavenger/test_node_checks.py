"""Nodes that fail the check before their first worker: left out for longer each time, by no word of a job."""

from __future__ import annotations

from dataclasses import replace

from malletrain.runtime.kernel.recording import Moment
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.machine.quarantine import Quarantine, QuarantinePolicy, read_records
from malletrain.scavenger.machine.stimuli import NodesObserved, NoteQuarantine
from malletrain.scavenger.sources.mixed import merge
from malletrain.scavenger.sources.schedulers.settings import NodeCheckSettings
from tests.scavenger.machines import machine_of

POLICY = QuarantinePolicy(half_life_seconds=1000, check_seconds=60, longest_check_seconds=200)


def test_each_check_that_fails_doubles_the_time_until_the_node_has_been_well_for_long() -> None:
    quarantine = Quarantine(POLICY)
    now, times = 0.0, []
    for _ in range(4):
        times.append(quarantine.check_failed("n1", now, "no mount", "a check"))
        now += times[-1]
    assert times == [60, 120, 200, 200]
    kept = Quarantine(POLICY, read_records(quarantine.to_json()))
    assert kept.check_failed("n1", now, "no mount", "a check") == 200, "a restart forgets nothing"
    quarantine.check_failed("n2", now + 1200, "", "")
    assert quarantine.check_failed("n1", now + 1201, "no mount", "a check") == 60
    quarantine.lift(["n1"], now)
    assert quarantine.check_failed("n1", now, "no mount", "a check") == 60


def test_a_check_that_fails_does_not_make_failures_of_work_count_for_more() -> None:
    quarantine = Quarantine(POLICY)
    for now in (0.0, 1.0, 2.0):
        quarantine.check_failed("n1", now, "no mount", "a check")
    quarantine.failed("n1", 1000.0)
    assert not quarantine.quarantined(1000.0)


def test_a_node_that_failed_its_check_is_left_out_and_comes_back() -> None:
    machine = machine_of()
    seen = Observation(0.0, {"n1": 0.0, "n2": 0.0}, unfit={"n2": "no mount"})
    effects = machine.advance(NodesObserved(seen), Moment(0.0, 0.0))
    (note,) = (effect for effect in effects if isinstance(effect, NoteQuarantine))
    assert (note.failure.node, note.failure.reason, note.is_check) == ("n2", "no mount", True)
    assert set(machine.idle.since()) == {"n1"}
    assert machine.quarantine.quarantined(1.0)["n2"].reason == "no mount"
    again = machine.advance(NodesObserved(replace(seen, time=61.0, unfit={})), Moment(61.0, 61.0))
    assert not any(isinstance(effect, NoteQuarantine) for effect in again)
    assert set(machine.idle.since()) == {"n1", "n2"}


def test_both_schedulers_tell_their_nodes() -> None:
    first, second = Observation(0.0, {}, unfit={"a": "x"}), Observation(0.0, {}, unfit={"b": "y"})
    assert merge([first, second], 2).unfit == {"a": "x", "b": "y"}


def test_the_options_of_an_agent() -> None:
    assert NodeCheckSettings(enabled=False).agent_options() == ()
    words = NodeCheckSettings(script="/opt/check", folders=("/a", "/b")).agent_options()
    assert words[:2] == ("--check-seconds", "3")
    assert words[-4:] == ("--check-script", "/opt/check", "--check-script-seconds", "5")
    assert not any("," in word for word in words), "qsub would take it apart"
