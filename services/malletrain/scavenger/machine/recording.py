"""The Scavenger's machine as its recorder and replays see it."""

from __future__ import annotations

import typing

from malletrain.runtime.kernel.recording import Moment, RecordedMachine
from malletrain.scavenger.machine.machine import Effects, ScavengerMachine
from malletrain.scavenger.machine.stimuli import Due, StaysRequested, Stimulus


class RecordedScavenger(RecordedMachine[ScavengerMachine, Stimulus, Effects]):
    """How the flight recorder runs and checks the Scavenger's machine."""

    service = "scavenger"
    file_prefix = "scavenger-stimuli"
    state_type = ScavengerMachine
    stimulus_types = typing.get_args(Stimulus)

    def advance(self, state: ScavengerMachine, stimulus: Stimulus, now: Moment) -> Effects:
        """Have the machine handle a stimulus; its state changes in place."""
        return state.advance(stimulus, now)

    def check(self, before: ScavengerMachine, result: Effects) -> None:
        """Check the idle set."""
        del result
        before.idle.check()

    def is_recorded(self, stimulus: Stimulus, result: Effects) -> bool:
        """What is due every second and changes nothing is left out, and what only reads."""
        return bool(result) or not isinstance(stimulus, Due | StaysRequested)
