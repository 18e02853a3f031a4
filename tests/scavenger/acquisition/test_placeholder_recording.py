"""What the machine of placeholders was given is written down when it fails, and leads a replay to the same failure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.runtime.errors import InvariantError
from malletrain.runtime.kernel.documents import from_document, to_document
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.recording import Moment
from malletrain.scavenger.machine.placeholder_machine import ClockSet, PlaceholderStep, RecordedPlaceholders, Stimulus
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
from tests.scavenger.acquisition.stand_in_scheduler import Mood
from tests.scavenger.acquisition.test_placeholder_controller import NODES, POLICY, Harness
from tests.support.debug_replay import debug_replay

FAULT = """
from malletrain.scavenger.machine.placeholder_state import PlaceholderState
PlaceholderState.room = lambda self, wanted, policy, now: wanted - len(self.placeholders)
"""


class Kept(FlightRecorder[PlaceholderState, Stimulus, PlaceholderStep]):
    """A recorder that keeps all that the machine was given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, RecordedPlaceholders(POLICY), validate=True, min_stimuli=100)
        self.given: list[tuple[PlaceholderState, Stimulus, Moment, PlaceholderStep]] = []

    def advance(self, state: PlaceholderState, stimulus: Stimulus, now: Moment) -> PlaceholderStep:
        step = super().advance(state, stimulus, now)
        self.given.append((state, stimulus, now, step))
        return step


async def test_whatever_the_scheduler_does_a_replay_by_documents_decides_the_same(tmp_path: Path) -> None:
    recorder = Kept(tmp_path)
    harness = Harness(40, {NodeNeeds(gpu="a100"): 1, NO_NEEDS: 39}, recorder)
    for mood in (
        Mood.STARTS,
        Mood.IS_SILENT,
        Mood.REFUSES,
        Mood.ENDS_AT_ONCE,
        Mood.TAKES_IT_AND_IS_SILENT,
        Mood.STARTS,
    ):
        harness.scheduler.mood = mood
        await harness.run(15)
        harness.wanted -= 5
        harness.controller.set_unwanted(frozenset(harness.scheduler.nodes[:2]))
        await harness.run(45)
    harness.controller.move_times(100.0)
    assert {type(stimulus) for _, stimulus, _, _ in recorder.given} >= {
        *RecordedPlaceholders.stimulus_types[:2],
        ClockSet,
    }
    machine = RecordedPlaceholders(POLICY)
    state = PlaceholderState()
    for _, stimulus, now, step in recorder.given:
        read = from_document(type(stimulus), json.loads(json.dumps(to_document(stimulus))))
        result = machine.advance(state, read, now)
        assert result == step
        state = from_document(PlaceholderState, json.loads(json.dumps(to_document(result.state))))


async def test_a_defect_is_written_down_and_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlaceholderState, "room", lambda self, wanted, *_: wanted - len(self.placeholders))
    recorder = FlightRecorder(tmp_path, RecordedPlaceholders(POLICY), validate=True, min_stimuli=100)
    harness = Harness(2, recorder=recorder)
    await harness.run(10)
    harness.wanted = len(NODES)
    with pytest.raises(InvariantError, match="98 placeholders wait, at most 64 may"):
        await harness.run(10)
    (file,) = tmp_path.glob("placeholder-stimuli-*.json")
    again = debug_replay(file, fault=FAULT)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "the same failure as recorded: InvariantError" in again.stdout
    mended = debug_replay(file)
    assert mended.returncode == 1
    assert "replayed: no failure" in mended.stdout


async def test_a_defect_that_shows_in_the_call_of_an_agent_ends_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would end that call alone, and the agent would come again and again."""
    recorder = FlightRecorder(tmp_path, RecordedPlaceholders(POLICY), validate=True, min_stimuli=100)
    harness = Harness(2, recorder=recorder)
    await harness.run(5)
    monkeypatch.setattr(PlaceholderState, "observed", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        harness.controller.agents_changed()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(harness.controller.run(), 10)
    assert any(tmp_path.glob("placeholder-stimuli-*.json"))
