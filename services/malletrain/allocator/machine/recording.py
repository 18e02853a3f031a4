"""The Allocator's machine as its recorder sees it."""

from __future__ import annotations

import typing

from malletrain.allocator.machine.machine import AllocatorMachine, Effects
from malletrain.allocator.machine.stimuli import Stimulus
from malletrain.allocator.machine.validation import check_advance
from malletrain.runtime.kernel.recording import Moment, RecordedMachine


class RecordedAllocator(RecordedMachine[AllocatorMachine, Stimulus, Effects]):
    """The Allocator's machine. It is told no secrets."""

    service = "allocator"
    file_prefix = "allocator-stimuli"
    state_type = AllocatorMachine
    stimulus_types = typing.get_args(Stimulus)

    def advance(self, state: AllocatorMachine, stimulus: Stimulus, now: Moment) -> Effects:
        """Handle a stimulus."""
        return state.advance(stimulus, now)

    def check(self, before: AllocatorMachine, result: Effects) -> None:
        """Check the machine as it is now, and what it has just wanted done."""
        check_advance(before, result)
