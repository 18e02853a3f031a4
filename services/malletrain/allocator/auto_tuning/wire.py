"""Auto-tuning in messages and settings."""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.allocator.auto_tuning.machine import (
    AutoTune,
    ForwardChoice,
    TuningBounds,
    TuningEvent,
    TuningState,
)
from malletrain.allocator.auto_tuning.store import TuningRun
from malletrain.allocator.auto_tuning.tuner import TunerOptions
from malletrain.allocator.settings import AllocatorSettings
from malletrain.runtime.messages import timestamp
from malletrain.v1 import allocator_pb2


def tuner_options(section: AllocatorSettings) -> TunerOptions:
    """What the settings say of auto-tuning."""
    return TunerOptions(
        section.auto_tune,
        section.forward,
        TuningBounds(*section.auto_tune_bounds),
        section.auto_tune_seconds,
        section.auto_tune_cpu_share,
        section.auto_tune_part_seconds,
    )


def tuning_to_proto(
    mode: AutoTune, state: TuningState, runs: Sequence[TuningRun], interval_s: float
) -> allocator_pb2.GetTuningResponse:
    """The answer of GetTuning.

    Args:
        mode: What tuning may do.
        state: What it remembers.
        runs: Its newest runs, the newest first.
        interval_s: Seconds between two runs.
    """
    return allocator_pb2.GetTuningResponse(
        mode=allocator_pb2.TuningMode.Value(f"TUNING_MODE_{mode.name}"),
        configured=_choice(state.configured),
        in_force=_choice(state.in_force),
        why=state.why,
        on_trial=state.trial is not None,
        interval_seconds=interval_s,
        runs=[
            allocator_pb2.TuningRun(time=timestamp(run.unix_seconds), event=_event(run.event), reason=run.reason)
            for run in runs
        ],
    )


def _choice(choice: ForwardChoice) -> allocator_pb2.ForwardSetting:
    return allocator_pb2.ForwardSetting(policy=choice.policy.value, seconds=choice.seconds)


def _event(event: TuningEvent) -> allocator_pb2.TuningEvent.ValueType:
    return allocator_pb2.TuningEvent.Value(f"TUNING_EVENT_{event.name}")
