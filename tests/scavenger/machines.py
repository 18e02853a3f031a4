"""The Scavenger's machine as tests drive it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.scavenger.idle_events import Recorder
from malletrain.scavenger.machine.idle_set import IdleSet
from malletrain.scavenger.machine.machine import ScavengerMachine
from malletrain.scavenger.machine.quarantine import Quarantine, QuarantinePolicy
from malletrain.scavenger.machine.recording import RecordedScavenger
from malletrain.scavenger.machine.stays import StayEstimator


def machine_of(
    debounce_seconds: float = 0.0,
    past_lengths: Sequence[float] = (),
    horizon_seconds: float = 60.0,
    failures: float = 3.0,
    begun: float = 0.0,
) -> ScavengerMachine:
    stays = StayEstimator(past_lengths, horizon_seconds=horizon_seconds)
    quarantine = Quarantine(QuarantinePolicy(failures=failures))
    return ScavengerMachine(IdleSet(debounce_seconds), stays, quarantine, begun)


def recorder_of(folder: Path) -> Recorder:
    """A recorder that checks the invariants."""
    return FlightRecorder(folder / "debug", RecordedScavenger(), validate=True)
