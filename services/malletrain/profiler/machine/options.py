"""What an operator chooses about curves and runs; see the settings of the same names in `profiler/settings.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from malletrain.profiler.machine.profile_scheduler import ProfilingParameters
from malletrain.profiler.machine.scale_selection import ScaleStrategy


class ProfilingMode(StrEnum):
    """When a job's curve is profiled: if no usable one is known, once, or only on request."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class ProfilerOptions:
    """The operator's choices. Those without a remark are as in the settings.

    Attributes:
        profiling: Durations and thresholds of runs.
    """

    profiling: ProfilingParameters
    prior_rate: float
    prior_exponent: float
    prior_weight: float
    scale_up_seconds: float
    scale_down_seconds: float
    pair_stall_weight: float
    least_change: float
    least_stall_change_seconds: float
    default_mode: ProfilingMode
    strategy: ScaleStrategy
    target_error: float
    curve_error: float
    drift_per_hour: float
    contradiction: float
    most_error: float
    fade_seconds: float
    fleet_nodes: int
    family_members: int
    publish_seconds: float
    save_seconds: float
    look_seconds: float
    snapshot_seconds: float
